"""mma.sync: fragments against index tables, numbers against exact fractions, in both modes and for every type."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, ShapeError, UnsupportedError
from gemmule.vgpu.mma import mma_sync, registers
from gemmule.vgpu.mma.double import fused_multiply_add

# Fragments as CUTLASS lists them (cute/atom/mma_traits_sm80.hpp, _sm90.hpp): the place of an element in its matrix,
# columns end to end, is a stride times t, and g, and for each digit of its number in the lane (count, stride).
# By bits of an element and k.
A_OF_16_ROWS = {
    (16, 8): (32, [(2, 16), (2, 8)]),
    (16, 16): (32, [(2, 16), (2, 8), (2, 128)]),
    (32, 4): (16, [(2, 8)]),
    (32, 8): (16, [(2, 8), (2, 64)]),
    (8, 16): (64, [(4, 16), (2, 8)]),
    (8, 32): (64, [(4, 16), (2, 8), (2, 256)]),
    (64, 4): (16, [(2, 8)]),
    (64, 8): (16, [(2, 8), (2, 64)]),
    (64, 16): (16, [(2, 8), (4, 64)]),
}
# A with 8 rows, and B with its 8 columns.
OF_8 = {
    (16, 8): (16, [(2, 8)]),
    (16, 16): (16, [(2, 8), (2, 64)]),
    (32, 4): (8, [(1, 0)]),
    (32, 8): (8, [(2, 32)]),
    (8, 16): (32, [(4, 8)]),
    (8, 32): (32, [(4, 8), (2, 128)]),
    (64, 4): (8, [(1, 0)]),
    (64, 8): (8, [(2, 32)]),
    (64, 16): (8, [(4, 32)]),
}
C_OF = {16: (32, [(2, 16), (2, 8)]), 8: (16, [(2, 8)])}

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f64": 64, "f32": 32, "s32": 32}
# Bits of exponent and fraction.
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "e4m3": (4, 3), "e5m2": (5, 2), "f32": (8, 23)}

CASES = [
    (shape, a, b, d)
    for shapes, pairs, accumulators in (
        ([(16, 8, 8), (16, 8, 16)], [("f16", "f16")], ["f32", "f16"]),
        ([(16, 8, 8), (16, 8, 16)], [("bf16", "bf16")], ["f32"]),
        ([(16, 8, 4), (16, 8, 8)], [("tf32", "tf32")], ["f32"]),
        ([(16, 8, 16), (16, 8, 32)], list(itertools.product(("e4m3", "e5m2"), repeat=2)), ["f32", "f16"]),
        ([(8, 8, 16), (16, 8, 16), (16, 8, 32)], list(itertools.product(("s8", "u8"), repeat=2)), ["s32"]),
        ([(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)], [("f64", "f64")], ["f64"]),
    )
    for shape in shapes
    for a, b in pairs
    for d in accumulators
]
FLOAT_CASES = [case for case in CASES if case[1] in FLOATS]


def places(table):
    """Return the place of each element of each lane, (32, elements)."""
    t_stride, digits = table
    rows = []
    for lane in range(32):
        row = []
        # The last digit varies slowest.
        for number in itertools.product(*(range(count) for count, _ in reversed(digits))):
            offset = sum(n * stride for n, (_, stride) in zip(reversed(number), digits, strict=True))
            row.append(lane % 4 * t_stride + lane // 4 + offset)
        rows.append(row)
    return np.array(rows)


def packed(matrices, table):
    """Put matrices of bits, (warps, rows, columns), into registers."""
    columns_end_to_end = matrices.transpose(0, 2, 1).reshape(len(matrices), -1)
    elements = np.ascontiguousarray(columns_end_to_end[:, places(table)])
    return elements.view(np.uint64 if elements.dtype.itemsize == 8 else np.uint32)


def unpacked(words, table, rows, dtype):
    elements = np.ascontiguousarray(words).view(dtype)
    flat = np.empty((len(words), rows * 8), dtype)
    flat[:, places(table)] = elements
    return flat.reshape(len(words), 8, rows).transpose(0, 2, 1)


def run(shape, a_type, b_type, d_type, a, b, c, **options):
    """Multiply matrices of bits: a (warps, m, k), b (warps, k, n), c (warps, m, n)."""
    rows, _, k = shape
    key = (BITS[a_type], k)
    words = mma_sync(
        shape,
        a_type,
        b_type,
        d_type,
        d_type,
        packed(a, A_OF_16_ROWS[key] if rows == 16 else OF_8[key]),
        packed(b.transpose(0, 2, 1), OF_8[key]),
        packed(c, C_OF[rows]),
        **options,
    )
    return unpacked(words, C_OF[rows], rows, c.dtype)


def unsigned(bits):
    return np.dtype(f"u{bits // 8}")


def bits_of(values, kind):
    """Return the bits of values that the type holds exactly, those of a float by its definition."""
    values = np.asarray(values, np.float64)
    if kind in ("s8", "u8", "s32"):
        return values.astype(np.int64).astype(unsigned(BITS[kind]))
    if kind == "f64":
        return values.view(np.uint64)
    exponent_bits, fraction_bits = FLOATS[kind]
    smallest = 2 - 2 ** (exponent_bits - 1)
    exponent = np.where(values == 0, smallest, np.maximum(np.frexp(values)[1] - 1, smallest))
    steps = np.abs(values) / 2.0 ** (exponent - fraction_bits)
    assert (steps == np.round(steps)).all()
    assert (steps < 2 ** (fraction_bits + 1)).all()
    bits = steps.astype(np.int64) + (exponent - smallest << fraction_bits)
    bits |= np.signbit(values).astype(np.int64) << exponent_bits + fraction_bits
    return (bits << (13 if kind == "tf32" else 0)).astype(unsigned(BITS[kind]))


def decoded(bits, kind):
    """Return sign, significand and exponent of its last bit as integers; or 'inf', '-inf' or 'nan'."""
    exponent_bits, fraction_bits = FLOATS[kind]
    bits = int(bits) >> (13 if kind == "tf32" else 0)
    fraction = bits & (1 << fraction_bits) - 1
    field = bits >> fraction_bits & (1 << exponent_bits) - 1
    negative = bits >> exponent_bits + fraction_bits
    smallest = 2 - 2 ** (exponent_bits - 1) - fraction_bits
    if field == (1 << exponent_bits) - 1:
        if kind == "e4m3":
            if fraction == 7:
                return "nan"
        elif fraction:
            return "nan"
        else:
            return "-inf" if negative else "inf"
    significand = fraction + (1 << fraction_bits if field else 0)
    return -significand if negative else significand, smallest + max(field - 1, 0)


def special(terms, c):
    """Return the sum of products and c as IEEE arithmetic has it if one is not finite, else None."""
    if all(isinstance(x, tuple) for x in (*itertools.chain(*terms), c)):
        return None
    as_float = [float(x) if isinstance(x, str) else float(x[0]) for x in (*itertools.chain(*terms), c)]
    *factors, total = as_float
    for x, y in zip(factors[::2], factors[1::2], strict=True):
        total += x * y
    return None if math.isfinite(total) else total


def rounded(value, kind, towards_zero):
    """Return the bits of a Fraction in f32 or f16; what becomes zero is +0."""
    exponent_bits, fraction_bits = FLOATS[kind]
    size = abs(value)
    exponent = 2 - 2 ** (exponent_bits - 1)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    steps = size / Fraction(2) ** (exponent - fraction_bits)
    whole = steps.numerator // steps.denominator
    rest = steps - whole
    if not towards_zero and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)):
        whole += 1
    # Carries run from the fraction into the exponent; a subnormal number has the smallest exponent and no leading bit.
    bits = whole + (exponent - (2 - 2 ** (exponent_bits - 1)) << fraction_bits)
    infinity = (1 << exponent_bits) - 1 << fraction_bits
    if not towards_zero and bits > infinity:
        bits = infinity
    if towards_zero and exponent > 2 ** (exponent_bits - 1) - 1:
        bits = infinity
    return bits | (value < 0 and bits != 0) << exponent_bits + fraction_bits


def bits_of_special(total, kind):
    exponent_bits, fraction_bits = FLOATS[kind]
    if math.isnan(total):
        return (1 << exponent_bits + fraction_bits) - 1
    return ((1 << exponent_bits) - 1 << fraction_bits) | (total < 0) << exponent_bits + fraction_bits


def value(number):
    return number[0] * Fraction(2) ** number[1]


def block_fma(terms, c, kind, fractions):
    """One block FMA on decoded numbers, with integers only; return bits."""
    if (total := special(terms, c)) is not None:
        return bits_of_special(total, kind)
    # An exponent here is that of the leading bit of a normal number of the format.
    aligned = []
    for (x, y), (x_fraction, y_fraction) in zip(terms, fractions, strict=True):
        if x[0] and y[0]:
            aligned.append((x[0] * y[0], x[1] + y[1], x[1] + y[1] + x_fraction + y_fraction))
    if c[0]:
        aligned.append((*c, c[1] + FLOATS[kind][1]))
    largest = max([{"f32": -133, "f16": -21}[kind], *(top for _, _, top in aligned)])
    last = largest - 25
    total = 0
    for significand, exponent, _ in aligned:
        shift = exponent - last
        size = abs(significand) << shift if shift >= 0 else abs(significand) >> -shift
        total += size if significand > 0 else -size
    return rounded(total * Fraction(2) ** last, kind, towards_zero=kind == "f32")


def hopper(a_type, b_type, d_type, a, b, c):
    """One element of D as Hopper gives it: bits of rows of a and b, and of c."""
    terms = [(decoded(x, a_type), decoded(y, b_type)) for x, y in zip(a, b, strict=True)]
    number = decoded(c, d_type)
    if BITS[a_type] > 8:
        fraction = (FLOATS[a_type][1], FLOATS[b_type][1])
        return block_fma(terms, number, d_type, [fraction] * len(terms))
    # Unpacked into f16, every 8-bit number is normal but the subnormal ones of e5m2.
    fractions = [(as_f16_fraction(x), as_f16_fraction(y)) for x, y in terms]
    partial = 0
    for half in ((0, 1), (2, 3)):
        chosen = [k for k in range(len(terms)) if k % 4 in half]
        start = decoded(partial, d_type)
        partial = block_fma([terms[k] for k in chosen], start, d_type, [fractions[k] for k in chosen])
    numbers = (number, decoded(partial, d_type))
    if (total := special([(numbers[0], (1, 0))], numbers[1])) is not None:
        return bits_of_special(total, d_type)
    return rounded(value(numbers[0]) + value(numbers[1]), d_type, towards_zero=False)


def as_f16_fraction(number):
    """Return by how much the leading bit is above the last one, once the number is normal in f16."""
    if isinstance(number, str) or not number[0]:
        return 0
    top = abs(number[0]).bit_length() - 1
    return max(top, -14 - number[1])


def exact(a_type, b_type, d_type, a, b, c):
    terms = [(decoded(x, a_type), decoded(y, b_type)) for x, y in zip(a, b, strict=True)]
    number = decoded(c, d_type)
    if (total := special(terms, number)) is not None:
        return bits_of_special(total, d_type)
    return rounded(sum(value(x) * value(y) for x, y in terms) + value(number), d_type, towards_zero=False)


def of_every_element(reference, a_type, b_type, d_type, a, b, c):
    d = np.empty_like(c)
    for warp, row, column in np.ndindex(c.shape):
        d[warp, row, column] = reference(a_type, b_type, d_type, a[warp, row], b[warp, :, column], c[warp, row, column])
    return d


def random_values(rng, kind, shape, spread):
    """Return random numbers of a type with exponents that spread over about `spread`, as bits."""
    exponent_bits, fraction_bits = FLOATS[kind]
    limit = 2 ** (exponent_bits - 1) - 2
    exponents = np.clip(np.rint(rng.uniform(-spread / 2, spread / 2, shape)), -limit + 1, limit - 1)
    steps = rng.integers(2**fraction_bits, 2 ** (fraction_bits + 1), shape) * rng.choice([-1, 1], shape)
    return bits_of(steps * 2.0 ** (exponents - fraction_bits), kind)


def ids(cases):
    return [f"m{m}n{n}k{k}.{d}.{a}.{b}" for (m, n, k), a, b, d in cases]


@pytest.mark.parametrize("mode", ["exact", "hopper"])
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), CASES, ids=ids(CASES))
def test_fragments(rng, shape, a_type, b_type, d_type, mode):
    """Small integers, whose products all types and modes add exactly, at every place of the matrices."""
    m, n, k = shape
    # Up to 3 is exact even in e5m2; sums stay below the 2048 of f16.
    low = 0 if "u8" in (a_type, b_type) else -3
    a = rng.integers(low, 4, (3, m, k))
    b = rng.integers(low, 4, (3, k, n))
    c = rng.integers(-100, 100, (3, m, n))
    got = run(shape, a_type, b_type, d_type, bits_of(a, a_type), bits_of(b, b_type), bits_of(c, d_type), mode=mode)
    np.testing.assert_array_equal(got, bits_of(a @ b + c, d_type))


@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), CASES, ids=ids(CASES))
def test_register_counts(shape, a_type, b_type, d_type):
    m, n, k = shape
    width = 64 if d_type == "f64" else 32
    sizes = (m * k * BITS[a_type], k * n * BITS[b_type], m * n * BITS[d_type], m * n * BITS[d_type])
    assert registers(shape, a_type, b_type, d_type, d_type) == tuple(size // 32 // width for size in sizes)


# Sums of widely different terms are not exact in float64.
@pytest.mark.parametrize(
    ("mode", "spread"), [("exact", 3), ("exact", 12), ("hopper", 3), ("hopper", 12), ("hopper", 400)]
)
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), FLOAT_CASES, ids=ids(FLOAT_CASES))
def test_random_numbers(rng, shape, a_type, b_type, d_type, mode, spread):
    m, n, k = shape
    a, b = random_values(rng, a_type, (1, m, k), spread), random_values(rng, b_type, (1, k, n), spread)
    c = random_values(rng, d_type, (1, m, n), 2 * spread)
    reference = {"exact": exact, "hopper": hopper}[mode]
    got = run(shape, a_type, b_type, d_type, a, b, c, mode=mode)
    np.testing.assert_array_equal(got, of_every_element(reference, a_type, b_type, d_type, a, b, c))


@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), FLOAT_CASES, ids=ids(FLOAT_CASES))
def test_hopper_on_any_bits(rng, shape, a_type, b_type, d_type):
    """Random bits: subnormal numbers, zeros, infinities and NaN among them, rare enough that most sums are finite."""
    m, n, k = shape

    def any_bits(kind, shape):
        exponent_bits, fraction_bits = FLOATS[kind]
        drop = 13 if kind == "tf32" else 0
        bits = rng.integers(0, 2 ** BITS[kind], shape)
        full = (1 << exponent_bits) - 1 << fraction_bits + drop
        mostly_finite = (bits & full == full) & (rng.random(shape) > 0.02)
        bits = np.where(mostly_finite, bits & ~(full & -full), bits)
        tiny = rng.random(shape) < 0.3
        bits = np.where(tiny, bits & ~full, bits)
        return np.where(rng.random(shape) < 0.1, 0, bits).astype(unsigned(BITS[kind]))

    a, b, c = any_bits(a_type, (2, m, k)), any_bits(b_type, (2, k, n)), any_bits(d_type, (2, m, n))
    got = run(shape, a_type, b_type, d_type, a, b, c, mode="hopper")
    np.testing.assert_array_equal(got, of_every_element(hopper, a_type, b_type, d_type, a, b, c))


@pytest.mark.parametrize("mode", ["exact", "hopper"])
@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), FLOAT_CASES, ids=ids(FLOAT_CASES))
def test_cancellation(rng, shape, a_type, b_type, d_type, mode):
    """[A, -A] [B; B] + C with the halves interleaved: what is left is C, cut to what the products' exponents leave."""
    m, n, k = shape
    a, b = random_values(rng, a_type, (1, m, k), 6), random_values(rng, b_type, (1, k, n), 6)
    a[..., 1::2] = a[..., ::2] ^ (1 << BITS[a_type] - 1)
    b[:, 1::2] = b[:, ::2]
    c = random_values(rng, d_type, (1, m, n), 20)
    reference = {"exact": exact, "hopper": hopper}[mode]
    got = run(shape, a_type, b_type, d_type, a, b, c, mode=mode)
    np.testing.assert_array_equal(got, of_every_element(reference, a_type, b_type, d_type, a, b, c))
    if mode == "exact":
        np.testing.assert_array_equal(got, c)


def one_element(a_type, d_type, a, b, c, mode, k=16):
    """Return the element (0, 0) of D, from the first row of A, the first column of B and C (0, 0)."""
    a_values, b_values, c_values = np.zeros((1, 16, k)), np.zeros((1, k, 8)), np.zeros((1, 16, 8))
    a_values[0, 0, : len(a)] = a
    b_values[0, : len(b), 0] = b
    c_values[0, 0, 0] = c
    a_bits, b_bits, c_bits = (
        bits_of(x, kind) for x, kind in ((a_values, a_type), (b_values, a_type), (c_values, d_type))
    )
    return run((16, 8, k), a_type, a_type, d_type, a_bits, b_bits, c_bits, mode=mode)[0, 0, 0]


@pytest.mark.parametrize(
    ("products", "c", "exact_sum", "hopper_sum"),
    [
        # 2**-24 is the 24th of the 25 bits: eight of them come through.
        ([2.0**-24] * 8, 1.0, 1 + 2.0**-21, 1 + 2.0**-21),
        # 2**-25 is the last bit, 2**-26 is cut.
        ([2.0**-25] * 8, 1.0, 1 + 2.0**-22, 1 + 2.0**-22),
        ([2.0**-26] * 16, 1.0, 1 + 2.0**-22, 1.0),
        # Nearest against towards zero, for both signs.
        ([1.5 * 2.0**-24], 1.0, 1 + 2.0**-23, 1.0),
        ([-1.5 * 2.0**-24], -1.0, -1 - 2.0**-23, -1.0),
        # Each negative term is cut towards zero too: nothing is left of it.
        ([-(2.0**-26)], 1.0, 1.0, 1.0),
        ([-(2.0**-25)], 1.0, 1.0, 1 - 2.0**-24),
        # A product of significands in [2, 4) is not normalised: 1.5 * 1.5 = 2.25 aligns as if it were below 2.
        ([2.25, 2.0**-25], 0.0, 2.25, 2.25),
        ([2.25, -2.25, 2.0**-25], 0.0, 2.0**-25, 2.0**-25),
    ],
)
def test_cut_bits_by_hand(products, c, exact_sum, hopper_sum):
    def factors(product):
        if abs(product) == 2.25:
            return 1.5 * np.sign(product), 1.5
        return product * 2.0**13, 2.0**-13

    a, b = zip(*map(factors, products), strict=True)
    for mode, expected in (("exact", exact_sum), ("hopper", hopper_sum)):
        assert one_element("f16", "f32", a, b, c, mode).view(np.float32) == np.float32(expected)


HALF_OF_SMALLEST = (2.0**-12, 2.0**-13)  # of float16


@pytest.mark.parametrize(
    ("a_type", "d_type", "factors", "c", "expected"),
    [
        # Into f32 nothing below 2**-158 counts, and 2**-152 does, though the exponents are far below -126.
        ("bf16", "f32", [(2.0**-60 - 2.0**-66, 2.0**-89), *[(2.0**-60 - 2.0**-66, 2.0**-98)] * 15], 0.0, 0.0),
        ("bf16", "f32", [(2.0**-60 - 2.0**-63, 2.0**-89), (2.0**-60, 2.0**-92)], 0.0, 2.0**-149),
        # Into f16 nothing below 2**-46 counts: it decides the tie at half the smallest number.
        ("f16", "f16", [HALF_OF_SMALLEST, (2.0**-22, 2.0**-24)], 0.0, 2.0**-24),
        ("f16", "f16", [HALF_OF_SMALLEST, (2.0**-23, 2.0**-24)], 0.0, 0.0),
        # A subnormal C of f16 aligns at 2**-14: nothing below 2**-39 counts.
        ("f16", "f16", [HALF_OF_SMALLEST, (-(2.0**-19), 2.0**-20)], 2.0**-24, 2.0**-24),
        ("f16", "f16", [HALF_OF_SMALLEST, (-(2.0**-20), 2.0**-20)], 2.0**-24, 2.0**-23),
        # So does a subnormal factor: 2**-24 * 1.
        ("f16", "f16", [(2.0**-24, 1.0), HALF_OF_SMALLEST, (-(2.0**-19), 2.0**-20)], 0.0, 2.0**-24),
        ("f16", "f16", [(2.0**-24, 1.0), HALF_OF_SMALLEST, (-(2.0**-20), 2.0**-20)], 0.0, 2.0**-23),
    ],
)
def test_small_numbers_by_hand(a_type, d_type, factors, c, expected):
    """The details that the sources tell differently, as the model has them."""
    a, b = zip(*factors, strict=True)
    assert one_element(a_type, d_type, a, b, c, "hopper") == bits_of(expected, d_type)


def test_8_bit_floats_are_added_to_c_last():
    """Twelve products of 2**-26 are added before C = 1: 1 + 3 * 2**-24, a tie; one block FMA cuts each of them."""
    small = 2.0**-13
    assert one_element("e5m2", "f32", [small] * 12, [small] * 12, 1.0, "hopper").view(np.float32) == 1 + 2.0**-22
    assert one_element("f16", "f32", [small] * 12, [small] * 12, 1.0, "hopper").view(np.float32) == 1


@pytest.mark.parametrize("mode", ["exact", "hopper"])
def test_sums_of_zero_are_positive(mode):
    for d_type in ("f32", "f16"):
        assert one_element("f16", d_type, [-0.0] * 16, [1.0] * 16, -0.0, mode) == 0
        assert one_element("f16", d_type, [1.0, -1.0], [1.0, 1.0], -0.0, mode) == 0


@pytest.mark.parametrize("mode", ["exact", "hopper"])
def test_special_values(mode):
    inf, nan = 0x7C00, 0x7D01  # a signalling NaN
    a, b = np.zeros((1, 16, 16), np.uint16), np.zeros((1, 16, 8), np.uint16)
    b[:] = 0x3C00  # 1
    b[0, 2] = 0
    a[0, 0, 0], a[0, 1, 0], a[0, 1, 1] = inf, inf, inf | 0x8000
    a[0, 2, 2], a[0, 3, 5], a[0, 4, 7] = inf, nan, inf | 0x8000
    c = np.zeros((1, 16, 8), np.uint32)
    c[0, 5, :], c[0, 6, :], c[0, 7, :] = 0x7F800000, 0xFFC00001, 0x7F7FFFFF
    got = run((16, 8, 16), "f16", "f16", "f32", a, b, c, mode=mode)[0, :, 3]
    expected = [0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0xFF800000, 0x7F800000, 0x7FFFFFFF, 0x7F7FFFFF]
    assert [hex(x) for x in got[:8]] == [hex(x) for x in expected]


def test_overflow():
    """Beyond the largest number: infinite; towards zero, anything below 2**128 is the largest number."""
    largest = float(np.finfo(np.float32).max)
    half_ulp = 2.0**103
    for mode, more in (("exact", math.inf), ("hopper", largest)):
        d = one_element("bf16", "f32", [2.0**52], [half_ulp / 2.0**52], largest, mode)
        assert d.view(np.float32) == np.float32(more)
        assert one_element("bf16", "f32", [2.0**100], [2.0**100], 0.0, mode).view(np.float32) == np.inf
    for mode, rest in (("exact", 3.0), ("hopper", 0.0)):
        assert one_element("f16", "f16", [256.0], [256.0], 0.0, mode) == 0x7C00
        # Products beyond float32 that cancel do no harm, but their exponent leaves nothing of C.
        d = one_element("bf16", "f32", [2.0**100, 2.0**100], [2.0**100, -(2.0**100)], 3.0, mode)
        assert d.view(np.float32) == rest


def test_tf32_ignores_the_low_bits(rng):
    a = random_values(rng, "tf32", (1, 16, 8), 4)
    b, c = random_values(rng, "tf32", (1, 8, 8), 4), random_values(rng, "f32", (1, 16, 8), 4)
    clean = run((16, 8, 8), "tf32", "tf32", "f32", a, b, c)
    noise = rng.integers(0, 1 << 13, a.shape, dtype=np.uint32)
    np.testing.assert_array_equal(run((16, 8, 8), "tf32", "tf32", "f32", a | noise, b, c), clean)


@pytest.mark.parametrize("mode", ["exact", "hopper"])
@pytest.mark.parametrize("a_type", ["s8", "u8"])
@pytest.mark.parametrize("b_type", ["s8", "u8"])
def test_integers(rng, a_type, b_type, mode):
    shape = (16, 8, 32)
    a = rng.integers(-128, 128, (2, 16, 32)) if a_type == "s8" else rng.integers(0, 256, (2, 16, 32))
    b = rng.integers(-128, 128, (2, 32, 8)) if b_type == "s8" else rng.integers(0, 256, (2, 32, 8))
    a[0, 0], b[0, :, 0] = (-128 if a_type == "s8" else 255), (-128 if b_type == "s8" else 255)
    c = rng.choice([-(2**31), 2**31 - 1, 0, 17], (2, 16, 8))
    bits = (bits_of(a, a_type), bits_of(b, b_type), bits_of(c, "s32"))
    total = a @ b + c
    assert (total > 2**31 - 1).any() or (total < -(2**31)).any()
    wrapped = run(shape, a_type, b_type, "s32", *bits, mode=mode)
    np.testing.assert_array_equal(wrapped, bits_of(total, "s32"))
    clamped = run(shape, a_type, b_type, "s32", *bits, mode=mode, satfinite=True)
    np.testing.assert_array_equal(clamped, bits_of(np.clip(total, -(2**31), 2**31 - 1), "s32"))


def fma_by_fractions(a, b, c):
    if not all(map(math.isfinite, (a, b, c))):
        return c if math.isfinite(a) and math.isfinite(b) else a * b + c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        # Only zeros, or terms that cancel: float arithmetic knows the sign.
        return a * b + c if a * b == 0 else 0.0
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def test_fused_multiply_add(rng):
    """Random numbers of all exponents; near-ties; terms that nearly cancel; overflow, underflow, zeros, infinities."""

    def wide(count):
        return rng.standard_normal(count) * 2.0 ** rng.integers(-500, 500, count)

    a, b = wide(3000), wide(3000)
    c = wide(3000)
    near = rng.standard_normal(3000) * (1 + np.arange(3000) % 2 * 2.0**-52)
    tiny, huge = wide(1000) * 2.0**-560, np.abs(wide(1000)) * 2.0**500
    factor = 5139.0
    other = (2**57 + 1) // 5139
    assert 5139 * other == 2**57 + 1
    odd = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, 2.0**-1074, -(2.0**-1074), 2.0**1023, -(2.0**1023)])
    every = np.array(list(itertools.product(odd, repeat=3))).T
    triples = [
        (a, b, c),
        (a, b, -(a * b)),
        (near, near[::-1], -near * near[::-1] * (1 + 2.0**-52)),
        # Ties, but for the last bit of the product.
        (
            1 + rng.integers(0, 2**26, 3000) * 2.0**-52,
            np.full(3000, 1 + 2.0**-52),
            np.ldexp(1.0, rng.integers(48, 58, 3000)),
        ),
        # 1 + 2**-53 + 2**-110: the small parts make a tie if they are rounded to nearest first.
        (np.array([factor, -factor]), np.array([other, other]) * 2.0**-110, np.array([1.0, -1.0])),
        (tiny, wide(1000), wide(1000) * 2.0**-500),
        (tiny, np.sqrt(np.abs(tiny)), tiny),
        (huge, wide(1000), -huge),
        tuple(every),
    ]
    for x, y, z in triples:
        with np.errstate(all="ignore"):
            expected = np.array([fma_by_fractions(*map(float, xyz)) for xyz in zip(x, y, z, strict=True)])
        got = fused_multiply_add(x, y, z)
        np.testing.assert_array_equal(got, expected)
        here = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[here]), np.signbit(expected[here]))


@pytest.mark.parametrize("shape", [(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)])
def test_f64_adds_in_the_order_of_k(rng, shape):
    m, n, k = shape
    a, b, c = rng.standard_normal((2, m, k)), rng.standard_normal((2, k, n)), rng.standard_normal((2, m, n))
    expected = c.copy()
    for warp, row, column in np.ndindex(c.shape):
        total = float(c[warp, row, column])
        for x, y in zip(a[warp, row], b[warp, :, column], strict=True):
            total = fma_by_fractions(float(x), float(y), total)
        expected[warp, row, column] = total
    got = run(shape, "f64", "f64", "f64", *(bits_of(x, "f64") for x in (a, b, c)))
    np.testing.assert_array_equal(got.view(np.float64), expected)


@pytest.mark.parametrize("warps", [0, 1, 95, 97, 300])
def test_any_number_of_warps_and_any_strides(rng, warps):
    """Each warp alone gives the same; registers may come as the engine has them, one array a register."""
    a = rng.standard_normal((8, warps, 32)).astype(np.float16).view(np.uint16).astype(np.uint32)
    a = (a[:4] | a[4:] << 16).transpose(1, 2, 0)
    b = a[::-1, ::-1, 1:3]
    c = rng.standard_normal((4, warps, 32)).astype(np.float32).view(np.uint32).transpose(1, 2, 0)
    for mode in ("exact", "hopper"):
        d = mma_sync((16, 8, 16), "f16", "f16", "f32", "f32", a, b, c, mode=mode)
        assert d.shape == (warps, 32, 4)
        for warp in range(0, warps, 41):
            part = (x[warp : warp + 1].copy() for x in (a, b, c))
            alone = mma_sync((16, 8, 16), "f16", "f16", "f32", "f32", *part, mode=mode)
            np.testing.assert_array_equal(alone[0], d[warp])


@pytest.mark.parametrize(
    ("shape", "a_type", "b_type", "c_type", "d_type"),
    [
        ((8, 8, 4), "f16", "f16", "f32", "f32"),
        ((16, 8, 16), "f16", "bf16", "f32", "f32"),
        ((16, 8, 16), "bf16", "bf16", "f16", "f16"),
        ((16, 8, 16), "f16", "f16", "f16", "f32"),
        ((16, 8, 32), "f16", "f16", "f32", "f32"),
        ((16, 8, 64), "s4", "s4", "s32", "s32"),
        ((16, 16, 16), "f16", "f16", "f32", "f32"),
    ],
)
def test_unknown_instructions_are_refused(shape, a_type, b_type, c_type, d_type):
    with pytest.raises(UnsupportedError, match="is not modelled"):
        registers(shape, a_type, b_type, c_type, d_type)


def test_wrong_registers_are_refused():
    a, b, c = (np.zeros((1, 32, count), np.uint32) for count in (4, 2, 4))
    with pytest.raises(ShapeError, match="b has the shape"):
        mma_sync((16, 8, 16), "f16", "f16", "f32", "f32", a, a, c)
    with pytest.raises(ArgumentError, match="mode='fast'"):
        mma_sync((16, 8, 16), "f16", "f16", "f32", "f32", a, b, c, mode="fast")
