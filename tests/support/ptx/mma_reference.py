"""What mma.sync is held against: fragments as index tables, sums of exact fractions, numbers of every type."""

import itertools
import math
from fractions import Fraction

import numpy as np

from gemmule.vgpu.mma import MmaForm, mma_sync

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
        MmaForm(shape, a_type, b_type, d_type, d_type, options.pop("satfinite", False)),
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


def assert_elements(rng, got, reference, types, a, b, c):
    """Hold a quarter of the elements, those of random rows, against fractions: all are computed alike."""
    for warp in range(len(c)):
        for row in rng.choice(c.shape[1], c.shape[1] // 4, replace=False):
            expected = [reference(*types, a[warp, row], b[warp, :, j], c[warp, row, j]) for j in range(c.shape[2])]
            np.testing.assert_array_equal(got[warp, row], np.array(expected, c.dtype))


def random_values(rng, kind, shape, spread):
    """Return random numbers of a type with exponents that spread over about `spread`, as bits."""
    exponent_bits, fraction_bits = FLOATS[kind]
    limit = 2 ** (exponent_bits - 1) - 2
    exponents = np.clip(np.rint(rng.uniform(-spread / 2, spread / 2, shape)), -limit + 1, limit - 1)
    steps = rng.integers(2**fraction_bits, 2 ** (fraction_bits + 1), shape) * rng.choice([-1, 1], shape)
    return bits_of(steps * 2.0 ** (exponents - fraction_bits), kind)


def ids(cases):
    return [f"m{m}n{n}k{k}.{d}.{a}.{b}" for (m, n, k), a, b, d in cases]
