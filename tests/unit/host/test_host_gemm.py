"""gemm on the host: every dtype, shape and stride, the rules of BLAS, and refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, ShapeError
from gemmule.host.arithmetic import choose_arithmetic
from gemmule.host.gemm import checked_gemm, gemm
from gemmule.host.product import needs_no_copy
from support.gemm_arrays import (
    BFLOAT16,
    DTYPES,
    E4M3,
    E5M2,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    SHAPES,
    assert_close,
    draw,
    exact,
    laid_out,
    poisoned,
    wrapped,
)
from support.host_blocks import shrink_blocks


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


@pytest.mark.parametrize("skipped", ["", "a", "b"])
def test_an_operand_that_blas_cannot_read_is_copied(skipped):
    """NumPy would copy all of it, beyond the memory that was promised."""
    a, b = (np.ones((8, 12))[:, :: 2 if name == skipped else 1] for name in "ab")
    assert needs_no_copy(a, b, choose_arithmetic(a.dtype, b.dtype, a.dtype)) == (not skipped)


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
@pytest.mark.parametrize("size", [(50, 40, 60), (20, 150, 9), (1, 100, 100), (100, 1, 100)])
def test_many_blocks_give_what_one_gives(rng, dtype, size, monkeypatch):
    """Blocks of a few elements instead of millions; small integers, so that every order of adding is exact."""
    shrink_blocks(monkeypatch, K_STEP=16, PANEL=512, SLAB=64, _FEWEST_ROWS=3, _MOST_COLUMNS=20, _LOOKUP=100, PIECE=37)
    m, n, k = size
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((2, 1, m, k), (3, k, n)))
    expected = a.astype("i8") @ b.astype("i8")
    for out_dtype, alpha, beta in itertools.product(
        ("f", "d") if dtype in "efd" else ("i4", "i8", "d"), (1, 3), (0, 2)
    ):
        for view in (slice(None), slice(None, None, -1)):
            out = poisoned((2, 3, m, n), np.dtype(out_dtype))[..., view, :]
            out[...] = 5 if beta else out
            gemm(a, b, out, alpha=alpha, beta=beta, c=out)
            np.testing.assert_array_equal(out, alpha * expected + 5 * beta)


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


def test_interleaved_operands_do_not_overlap(rng):
    both = draw(rng, (8, 16), np.dtype("f"))
    a, b = both[:, ::2], draw(rng, (8, 8), both.dtype)
    expected = a.copy() @ b
    gemm(a, b, both[:, 1::2])
    np.testing.assert_allclose(both[:, 1::2], expected, rtol=1e-4, atol=1e-5)


def test_c_that_overlaps_the_output_otherwise_is_read_first(rng, monkeypatch):
    shrink_blocks(monkeypatch, PIECE=64)
    a, b, out = (draw(rng, (40, 40), np.dtype("d")) for _ in range(3))
    before = out.copy()
    gemm(a, b, out, beta=1, c=out.T)
    assert_close(out, a, b, 1, 1, before.T)
    before = out.copy()
    gemm(a, b, out, beta=1, c=out[3])
    assert_close(out, a, b, 1, 1, before[3])


@pytest.mark.parametrize(("dtype", "side"), [("float32", 80), ("float64", 80), ("complex64", 40)])
def test_small_matrices_that_one_thread_multiplies_begin_sooner(dtype, side):
    def call(size, out_order="C"):
        a = np.ones((size, size), dtype)
        return checked_gemm(a, a, np.empty((size, size), dtype, out_order)).multiply

    assert call(side) is np.ndarray.dot
    assert call(side + 1) is np.matmul
    # It takes no such output.
    assert call(side, "F") is np.matmul
