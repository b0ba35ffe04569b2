"""gemm on the host: every dtype, shape and stride, the rules of BLAS, and rounding."""

from __future__ import annotations

import itertools
import warnings

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, ShapeError
from gemmule.host import product
from gemmule.host.gemm import gemm
from gemmule.host.rounding import write

BFLOAT16, E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
FLOATS = [np.dtype(t) for t in "efdgFD"] + [BFLOAT16, E4M3, E5M2]
INTEGERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
DTYPES = [*FLOATS, *INTEGERS, np.dtype(bool)]
SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 7, 5),
    (5, 1, 3),
    (13, 11, 1),
    (17, 31, 23),
    (0, 3, 2),
    (3, 0, 2),
    (3, 2, 0),
    (0, 0, 0),
]
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
LAYOUTS = ["rows", "columns", "reversed", "gaps", "unaligned", "swapped", "readonly"]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return rng.random(shape) < 0.3
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    out = np.empty(shape, dtype)
    out[...] = True if dtype.kind == "b" else np.iinfo(dtype).max if dtype in INTEGERS else np.nan
    return out


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """The same values, lying differently in memory."""
    if layout == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "reversed":
        return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    if layout == "gaps":
        wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
        wide[..., ::2, ::3] = x
        return wide[..., ::2, ::3]
    if layout == "unaligned":
        moved = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        moved[...] = x
        return moved
    if layout == "swapped" and x.dtype.isbuiltin == 1:
        return x.astype(x.dtype.newbyteorder())
    x = x.copy()
    x.flags.writeable = layout != "readonly"
    return x


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def exact(x: np.ndarray) -> np.ndarray:
    return np.array([int(v) for v in x.ravel()] + [None], dtype=object)[:-1].reshape(x.shape)


def wrapped(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    bits = 8 * dtype.itemsize
    flat = np.array([int(v) % 2**bits for v in x.ravel()], dtype=f"u{dtype.itemsize}")
    return flat.view(dtype).reshape(x.shape)


def assert_close(out, a, b, alpha=1, beta=0, c=None, sum_roundoff=None):
    """Componentwise: |out - exact| <= (k + 3) u (|alpha| |A||B| + |beta| |C|), and one rounding into out."""
    k = a.shape[-1]
    value = alpha * np.matmul(wide(a), wide(b))
    bound = abs(alpha) * np.matmul(np.abs(wide(a)), np.abs(wide(b)))
    if beta:
        value = value + beta * wide(c)
        bound = bound + abs(beta) * np.abs(wide(c))
    name = out.dtype.name
    u = sum_roundoff or (2.0**-24 if a.dtype.itemsize < 8 or a.dtype == np.complex64 else 2.0**-53)
    if out.dtype.kind == "c":
        u *= 4
    own = UNIT_ROUNDOFF[name] if name in UNIT_ROUNDOFF else float(np.finfo(out.dtype).eps) / 2
    error = np.abs(wide(out) - value)
    allowed = (k + 3) * u * bound
    allowed = allowed + own * (np.abs(value) + allowed) + SMALLEST.get(name, 0)
    assert np.all(error <= allowed), f"{np.max(error / allowed)} of the bound"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_floats_are_within_the_bound(rng, dtype, shape):
    m, n, k = shape
    a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
    c = draw(rng, (m, n), dtype)
    for alpha, beta in ((1, 0), (0.5, 0), (1, 1), (-2.0, 0.25)):
        out = poisoned((m, n), dtype)
        gemm(a, b, out, alpha=alpha, beta=beta, c=c)
        assert_close(out, a, b, alpha, beta, c)
        c_is_out = c.copy()
        gemm(a, b, c_is_out, alpha=alpha, beta=beta, c=c_is_out)
        np.testing.assert_array_equal(c_is_out, out)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, np.dtype(bool)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_and_byte_order_do_not_matter(rng, dtype, layout):
    a, b, c = draw(rng, (9, 33), dtype), draw(rng, (33, 10), dtype), draw(rng, (9, 10), dtype)
    expected, out = (
        poisoned((9, 10), dtype),
        laid_out(poisoned((9, 10), dtype), "rows" if layout == "readonly" else layout),
    )
    gemm(a, b, expected, alpha=3, beta=2, c=c)
    gemm(laid_out(a, layout), laid_out(b, layout), out, alpha=3, beta=2, c=laid_out(c, layout))
    if dtype in FLOATS:
        assert_close(out, a, b, 3, 2, c)
    else:
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("layouts", list(itertools.product(["rows", "columns", "gaps"], repeat=3)), ids="-".join)
def test_mixed_layouts(rng, layouts):
    a, b = draw(rng, (2, 9, 33), np.dtype("f")), draw(rng, (2, 33, 10), np.dtype("f"))
    a, b, out = (laid_out(x, layout) for x, layout in zip((a, b, poisoned((2, 9, 10), a.dtype)), layouts, strict=True))
    gemm(a, b, out)
    assert_close(out, a, b)


def test_zero_strides(rng):
    row = draw(rng, (1, 40), np.dtype("f"))
    a, b = np.broadcast_to(row, (6, 40)), np.broadcast_to(row.T, (40, 5))
    out = poisoned((6, 5), a.dtype)
    gemm(a, b, out)
    assert_close(out, a, b)


@pytest.mark.parametrize("swapped", [BFLOAT16, E4M3, E5M2], ids=str)
def test_a_swapped_mark_on_a_small_float_is_read_as_numpy_reads_it(rng, swapped):
    marked = np.frombuffer(rng.bytes(40 * swapped.itemsize), swapped.newbyteorder()).reshape(40, 1)
    out = poisoned((40, 1), np.dtype("f"))
    gemm(marked, np.ones((1, 1), swapped), out)
    np.testing.assert_array_equal(out, marked.astype(np.float32))


@pytest.mark.parametrize(
    ("a_batch", "b_batch"),
    [((3,), (3,)), ((3,), ()), ((), (2,)), ((2, 1), (3,)), ((4, 1, 2), (1, 3, 1)), ((0,), (1,)), ((300,), (1,))],
)
@pytest.mark.parametrize("dtype", [np.dtype("f"), np.dtype("e"), np.dtype("i1"), np.dtype("i4")], ids=str)
def test_batches_broadcast(rng, a_batch, b_batch, dtype):
    a, b = draw(rng, (*a_batch, 4, 6), dtype), draw(rng, (*b_batch, 6, 5), dtype)
    out_dtype = np.dtype("f") if dtype in FLOATS else np.dtype("i4")
    batch = np.broadcast_shapes(a_batch, b_batch)
    c = draw(rng, (5,), out_dtype)
    for beta in (0, 2):
        out = poisoned((*batch, 4, 5), out_dtype)
        gemm(a, b, out, beta=beta, c=c)
        if dtype in FLOATS:
            assert_close(out, a, b, 1, beta, c)
        else:
            np.testing.assert_array_equal(out, wrapped(exact(a) @ exact(b) + beta * exact(c), out_dtype))


@pytest.mark.parametrize("dtype", ["e", "f", "d", "i1", "i2", "i4"])
@pytest.mark.parametrize("size", [(50, 40, 60), (20, 150, 9), (1, 200, 200), (200, 1, 200)])
def test_many_blocks_give_what_one_gives(rng, dtype, size, monkeypatch):
    """Blocks of a few elements instead of millions; small integers, so that every order of adding is exact."""
    for name, value in {
        "K_STEP": 16,
        "PANEL": 512,
        "SLAB": 64,
        "_FEWEST_ROWS": 3,
        "_MOST_COLUMNS": 20,
        "_LOOKUP": 100,
    }.items():
        monkeypatch.setattr(product, name, value)
    monkeypatch.setattr("gemmule.host.rounding.PIECE", 37)
    m, n, k = size
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((3, m, k), (1, k, n)))
    expected = a.astype("i8") @ b.astype("i8")
    for out_dtype, alpha, beta in itertools.product(
        ("f", "d") if dtype in "efd" else ("i4", "i8", "d"), (1, 3), (0, 2)
    ):
        for view in (slice(None), slice(None, None, -1)):
            out = poisoned((3, m, n), np.dtype(out_dtype))[:, view]
            out[...] = 5 if beta else out
            gemm(a, b, out, alpha=alpha, beta=beta, c=out)
            np.testing.assert_array_equal(out, alpha * expected + 5 * beta)


# --- integers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype"),
    [*itertools.product(INTEGERS, repeat=2), (np.dtype(bool), np.dtype("i1")), (np.dtype("u8"), np.dtype(bool))],
    ids=str,
)
@pytest.mark.parametrize("out_dtype", INTEGERS, ids=str)
def test_integers_are_exact_modulo_the_output(rng, a_dtype, b_dtype, out_dtype):
    a, b, c = draw(rng, (4, 300), a_dtype), draw(rng, (300, 3), b_dtype), draw(rng, (4, 3), out_dtype)
    out = poisoned((4, 3), out_dtype)
    gemm(a, b, out, alpha=-3, beta=5.0, c=c)
    np.testing.assert_array_equal(out, wrapped(-3 * (exact(a) @ exact(b)) + 5 * exact(c), out_dtype))


@pytest.mark.parametrize(
    "dtypes", [("i1", "i1"), ("u1", "i1"), ("i1", "u1"), ("u1", "u1"), ("i2", "i2"), ("u2", "u2"), ("u2", "i4")]
)
@pytest.mark.parametrize("out_dtype", ["i1", "i4", "u4", "i8"])
@pytest.mark.parametrize("k", [1, 5000])
def test_extreme_integers(dtypes, out_dtype, k):
    # Odd sums: a float that has run out of bits can only hold even ones.
    ends = [(np.iinfo(d).min or np.iinfo(d).max, np.iinfo(d).max) for d in dtypes]
    a = np.full((3, k), ends[0][0], dtypes[0])
    b = np.full((k, 2), ends[1][0], dtypes[1])
    a[1], b[:, 1] = ends[0][1], ends[1][1]
    a[2], b[-1] = 1, 1
    expected = wrapped(exact(a) @ exact(b), np.dtype(out_dtype))
    out = poisoned((3, 2), np.dtype(out_dtype))
    gemm(a, b, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("k", [1023, 1024, 1025, 3000])
def test_int8_around_the_exact_run(rng, k):
    a, b = np.full((5, k), -128, np.int8), np.full((k, 4), -128, np.int8)
    a[:, 0], b[0] = 127, -127
    out = poisoned((5, 4), np.dtype(np.int32))
    gemm(a, b, out)
    np.testing.assert_array_equal(out, (k - 1) * 16384 - 127 * 127)


def test_int8_sum_wraps_like_hardware():
    k = 2**17 + 1
    a, b = np.full((1, k), -128, np.int8), np.full((k, 1), -128, np.int8)
    out32, out64 = poisoned((1, 1), np.dtype("i4")), poisoned((1, 1), np.dtype("i8"))
    gemm(a, b, out32)
    gemm(a, b, out64)
    assert out32[0, 0] == k * 16384 - 2**32
    assert out64[0, 0] == k * 16384


def test_integers_into_floats_round_once(rng):
    a, b = np.array([[2049, 1]], np.int16), np.array([[8193], [0]], np.int16)
    out16, out32 = poisoned((1, 1), np.dtype("e")), poisoned((1, 1), np.dtype("f"))
    gemm(a, b, out16, alpha=2.0**-12)
    gemm(a, b, out32)
    assert out16[0, 0] == np.float16(2049 * 8193 / 4096)
    assert out32[0, 0] == np.float32(2049 * 8193)
    signed, unsigned = np.array([[-1]], np.int64), np.array([[2**63]], np.uint64)
    out = poisoned((1, 1), np.dtype("d"))
    gemm(signed, unsigned, out)
    assert out[0, 0] == -(2.0**63)
    gemm(unsigned, np.ones((1, 1), np.uint64), out, alpha=-1)
    assert out[0, 0] == -(2.0**63)


def test_bool_is_or_of_and(rng):
    a, b, c = (draw(rng, shape, np.dtype(bool)) for shape in ((6, 9), (9, 7), (6, 7)))
    expected = (a[:, :, None] & b[None]).any(axis=1)
    out, numbers = poisoned((6, 7), np.dtype(bool)), poisoned((6, 7), np.dtype("i4"))
    gemm(a, b, out)
    np.testing.assert_array_equal(out, expected)
    gemm(a, b, out, beta=1, c=c)
    np.testing.assert_array_equal(out, expected | c)
    gemm(a, b, numbers, alpha=3)
    np.testing.assert_array_equal(numbers, 3 * expected)


# --- mixed dtypes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype", "out_dtype"),
    [
        ("e", "f", "f"), ("e", "f", "e"), (BFLOAT16, "e", "f"), (E4M3, E5M2, "f"), (E4M3, E5M2, BFLOAT16),
        ("i1", "f", "f"), ("i1", E4M3, "e"), (bool, "f", "f"),
        ("e", "F", "F"), ("f", "f", "d"), ("f", "f", "F"), ("e", "e", "f"),
    ],
)  # fmt: skip
def test_mixed_dtypes_are_summed_in_float32(rng, a_dtype, b_dtype, out_dtype):
    a, b = draw(rng, (9, 50), np.dtype(a_dtype)), draw(rng, (50, 8), np.dtype(b_dtype))
    out = poisoned((9, 8), np.dtype(out_dtype))
    gemm(a, b, out)
    assert_close(out, a, b, sum_roundoff=2.0**-24)


@pytest.mark.parametrize(("a_dtype", "b_dtype"), [("e", "d"), ("i4", "f"), ("i8", BFLOAT16), ("f", "D"), ("d", "F")])
def test_mixed_dtypes_are_summed_in_float64(rng, a_dtype, b_dtype):
    a, b = rng.integers(-99, 99, (9, 50)).astype(a_dtype), draw(rng, (50, 8), np.dtype(b_dtype))
    out = poisoned((9, 8), np.dtype("D" if b_dtype in ("D", "F") else "d"))
    gemm(a, b, out)
    assert_close(out, a, b, sum_roundoff=2.0**-53)


def test_low_precision_sums_in_float32_not_in_its_own_type():
    # 1 + 2048 * 2**-11 in float16 would stay 1.
    a, b = np.full((1, 2049), 2.0**-11, np.float16), np.ones((2049, 1), np.float16)
    a[0, 0] = 1
    out = poisoned((1, 1), np.dtype("e"))
    gemm(a, b, out)
    assert out[0, 0] == 2.0


def test_complex_scalars(rng):
    a, b, c = draw(rng, (5, 6), np.dtype("f")), draw(rng, (6, 4), np.dtype("f")), draw(rng, (5, 4), np.dtype("F"))
    out = poisoned((5, 4), np.dtype("F"))
    gemm(a, b, out, alpha=1j, beta=2 - 1j, c=c)
    assert_close(out, a, b, 1j, 2 - 1j, c, sum_roundoff=2.0**-24)


def test_c_of_a_wider_type_is_not_narrowed(rng):
    out = poisoned((1, 1), np.dtype("d"))
    gemm(np.ones((1, 1), "f"), np.ones((1, 1), "f"), out, beta=1, c=np.array([[2.0**-40]]))
    assert out[0, 0] == 1 + 2.0**-40


# --- the rules of BLAS --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["e", "f", "d", "F", BFLOAT16, E4M3], ids=str)
def test_nan_of_what_is_not_read_does_not_spread(dtype):
    dtype = np.dtype(dtype)
    ones, nan = np.ones((4, 4), dtype), np.full((4, 4), np.nan, dtype)
    out = nan.copy()
    gemm(ones, ones, out, beta=0, c=nan)
    np.testing.assert_array_equal(out.astype("D"), 4)
    gemm(ones, ones, out, alpha=2, beta=0.0, c=out)
    np.testing.assert_array_equal(out.astype("D"), 8)
    gemm(nan, nan, out, alpha=0, beta=3, c=ones)
    np.testing.assert_array_equal(out.astype("D"), 3)
    out = nan.copy()
    gemm(nan, nan, out, alpha=0.0)
    np.testing.assert_array_equal(out.astype("D"), 0)


@pytest.mark.parametrize("dtype", ["e", "f", "D", BFLOAT16, E4M3, E5M2], ids=str)
def test_nan_of_what_is_read_spreads(dtype):
    dtype = np.dtype(dtype)
    ones, nan = np.ones((2, 2), dtype), np.full((2, 2), np.nan, dtype)
    for arguments in (
        (nan, ones, {}),
        (ones, nan, {}),
        (ones, ones, {"beta": 1, "c": nan}),
        (ones, ones, {"alpha": np.nan}),
    ):
        out = np.ones((2, 2), dtype)
        gemm(arguments[0], arguments[1], out, **arguments[2])
        assert np.isnan(out.astype("D")).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_terms(rng, dtype):
    a, b, c = np.empty((3, 0), dtype), np.empty((0, 4), dtype), draw(rng, (3, 4), dtype)
    out = poisoned((3, 4), dtype)
    gemm(a, b, out)
    np.testing.assert_array_equal(out.astype("D"), 0)
    gemm(a, b, out, beta=1, c=c)
    np.testing.assert_array_equal(out, c)
    gemm(a, b, out, alpha=-1)
    assert not np.signbit(out.astype("D").real).any()


# --- overflow and rounding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "largest"), [(E4M3, 448.0), (E5M2, 57344.0)], ids=str)
@pytest.mark.parametrize("source", ["f", "d", E4M3], ids=str)
def test_float8_saturates(dtype, largest, source):
    source = np.dtype(source)
    a = np.array([[1, 448, -448, 0]], source).T
    big = np.array([[448.0]], source)
    out = poisoned((4, 1), dtype)
    gemm(a, big, out, alpha=1e4)
    np.testing.assert_array_equal(out.astype("f").ravel(), [largest, largest, -largest, 0])
    infinite = np.array([[np.inf, -np.inf, np.nan]], "f")
    out = poisoned((1, 3), dtype)
    gemm(np.ones((1, 1), "f"), infinite, out)
    np.testing.assert_array_equal(out.astype("f").ravel(), [largest, -largest, np.nan])


@pytest.mark.parametrize("dtype", ["e", BFLOAT16, "f"], ids=str)
def test_other_floats_overflow_to_infinity_without_a_warning(dtype):
    dtype = np.dtype(dtype)
    big = np.full((1, 1), float(ml_dtypes.finfo(dtype).max), dtype)
    out = poisoned((1, 1), dtype)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        gemm(big, -big, out)
        assert out[0, 0] == -np.inf
        gemm(big, big, out, beta=1, c=np.full((1, 1), -np.inf, dtype))
        gemm(np.full((1, 1), np.inf, dtype), np.zeros((1, 1), dtype), out)
        assert np.isnan(out[0, 0])


@pytest.mark.parametrize(("dtype", "bits"), [("e", 11), (BFLOAT16, 8), (E4M3, 4), (E5M2, 3)], ids=str)
@pytest.mark.parametrize("source", ["d", "g"])
def test_wide_sums_are_rounded_once(dtype, bits, source):
    # A hair beyond a tie: by way of float32 it would fall on the tie, and then to even.
    tie = 1 + 2.0**-bits
    values = np.array([[tie, tie + 2.0**-45, tie - 2.0**-45, -tie - 2.0**-45, 1 + 3 * 2.0**-bits - 2.0**-45]], source)
    out = poisoned((1, 5), np.dtype(dtype))
    gemm(np.ones((1, 1), source), values, out)
    step = 2.0 ** (1 - bits)
    np.testing.assert_array_equal(out.astype("d").ravel(), [1, 1 + step, 1, -1 - step, 1 + step])


# --- refusals -----------------------------------------------------------------------------------------------------


def test_refusals(rng):
    f, i = np.ones((2, 2), "f"), np.ones((2, 2), "i4")
    out, int_out = np.empty((2, 2), "f"), np.empty((2, 2), "i4")
    for error, call in [
        (ShapeError, lambda: gemm(f, np.ones((3, 2), "f"), out)),
        (ShapeError, lambda: gemm(f[0], f, out)),
        (ShapeError, lambda: gemm(f, f, np.empty((2, 3), "f"))),
        (ShapeError, lambda: gemm(np.ones((2, 2, 2)), np.ones((3, 2, 2)), np.empty((3, 2, 2)))),
        (ShapeError, lambda: gemm(f, f, out, beta=1, c=np.ones((3, 2), "f"))),
        (DTypeError, lambda: gemm(f, f, int_out)),
        (DTypeError, lambda: gemm(f.astype("F"), f, out)),
        (DTypeError, lambda: gemm(i, i, np.empty((2, 2), bool))),
        (DTypeError, lambda: gemm(f.astype(object), f, out)),
        (DTypeError, lambda: gemm(f.astype("M8[s]"), f, out)),
        (DTypeError, lambda: gemm(i, i, int_out, beta=1, c=f)),
        (ArgumentError, lambda: gemm(f, f, out, beta=1)),
        (ArgumentError, lambda: gemm(f, f, out, alpha=1j)),
        (ArgumentError, lambda: gemm(f, f, out, alpha=1e300)),
        (ArgumentError, lambda: gemm(f, f, out, alpha=10**400)),
        (OverlapError, lambda: gemm(out, f, out)),
        (OverlapError, lambda: gemm(f, out.T, out)),
        (OverlapError, lambda: gemm(f, f, np.lib.stride_tricks.as_strided(out, (2, 2), (0, 4)))),
    ]:
        with pytest.raises(error):
            call()
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        gemm(f, f, out)


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, 1 + 0j, np.float32(1.5)])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_integer_output_wants_integral_scalars(value, name):
    x, out = np.ones((2, 2), np.int8), np.zeros((2, 2), np.int32)
    with pytest.raises(ArgumentError, match=name):
        gemm(x, x, out, **{name: value}, c=out)
    gemm(x, x, out, **{name: np.float32(3)}, c=out)


def test_interleaved_operands_do_not_overlap(rng):
    both = draw(rng, (8, 16), np.dtype("f"))
    a, b = both[:, ::2], draw(rng, (8, 8), both.dtype)
    expected = a.copy() @ b
    gemm(a, b, both[:, 1::2])
    np.testing.assert_allclose(both[:, 1::2], expected, rtol=1e-4, atol=1e-5)


def test_c_that_overlaps_the_output_otherwise_is_read_first(rng, monkeypatch):
    monkeypatch.setattr("gemmule.host.rounding.PIECE", 64)
    a, b, out = (draw(rng, (40, 40), np.dtype("d")) for _ in range(3))
    before = out.copy()
    gemm(a, b, out, beta=1, c=out.T)
    assert_close(out, a, b, 1, 1, before.T)
    before = out.copy()
    gemm(a, b, out, beta=1, c=out[3])
    assert_close(out, a, b, 1, 1, before[3])


WIDE = ["int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("out", ["int8", *WIDE])
@pytest.mark.parametrize("second", ["int8", "uint16", *WIDE])
@pytest.mark.parametrize("first", WIDE)
def test_wide_integers_are_exact_modulo_their_range(first, second, out, rng):
    """They are multiplied in limbs of 16 bits, through BLAS."""
    limits = [np.iinfo(name) for name in (first, second)]
    a, b = (
        rng.integers(x.min, x.max, shape, x.dtype, endpoint=True)
        for x, shape in zip(limits, ((7, 33), (33, 5)), strict=True)
    )
    a[0], b[:, 0] = limits[0].min, limits[1].max
    got = np.full((7, 5), 77, out)
    gemm(a, b, got, alpha=3)
    span = 2 ** (8 * got.itemsize)
    expected = 3 * (a.astype(object) @ b.astype(object))
    assert [int(x) % span for x in got.ravel()] == [int(x) % span for x in expected.ravel()]


def test_wide_integers_do_not_wrap_on_their_way_to_a_float():
    a = np.full((2, 4), 2**31 - 1, np.int32)
    got = np.full((2, 2), np.nan)
    gemm(a, a.T, got)
    np.testing.assert_allclose(got, 4 * float(2**31 - 1) ** 2, rtol=1e-15)


def test_long_sums_of_narrow_integers_are_rounded_once():
    total = np.array([[2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, 2**60 + 2**52, 12345]])
    out = np.zeros((1, 4), ml_dtypes.bfloat16)
    write(out, total, 1, 0, None, np.dtype(np.float64))
    assert [int(x) for x in out[0]] == [2**60 + 2**53, -(2**60) - 2**53, 2**60, 12352]
