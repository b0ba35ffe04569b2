"""Tiles of a product on the host: sums of slices, their rounding, and the memory that they take."""

from __future__ import annotations

import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.executor.tiles import TileExecutor, TileSum
from gemmule.host.arithmetic import choose_arithmetic
from gemmule.host.tiles import HostTileExecutor
from support.host_blocks import shrink_blocks

BFLOAT16, E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
DTYPES = [np.dtype(t) for t in ("e", "f", "d", "F", "D", "i1", "u1", "i2", "i4", "u8", "?", ">f4")] + [
    BFLOAT16,
    E4M3,
    E5M2,
]
CUTS = [0, 1, 8, 8, 40, 57]


def small(rng, shape, dtype):
    """Small integers: every order of adding gives the same bits."""
    return rng.integers(0, 3, shape).astype(dtype)


def test_it_is_a_tile_executor():
    executor: TileExecutor = HostTileExecutor()
    assert executor.name == "cpu"
    assert f"NumPy {np.__version__}" in executor.describe()
    total: TileSum = executor.tile_sum(1, 1, np.dtype("f"), np.dtype("f"), np.dtype("f"))
    with total:
        pass


def test_describe_survives_a_numpy_that_tells_nothing(monkeypatch):
    monkeypatch.setattr(np, "show_config", lambda mode: {})
    assert HostTileExecutor().describe().startswith("unknown BLAS")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_add_up(rng, dtype):
    a, b = small(rng, (9, 57), dtype), small(rng, (57, 7), dtype)
    out_dtype = np.dtype({"i": "i8", "u": "i8", "c": "D", "b": "?"}.get(dtype.kind, "d"))
    with HostTileExecutor().tile_sum(9, 7, dtype, dtype, out_dtype) as total:
        for start, stop in itertools.pairwise(CUTS):
            total.add(a[:, start:stop], b[start:stop])
        out = np.full((9, 7), 99).astype(out_dtype)
        total.finish(out)
    wide = np.dtype("?") if dtype.kind == "b" else np.dtype("D")
    np.testing.assert_array_equal(out, a.astype(wide) @ b.astype(wide))


@pytest.mark.parametrize("dtype", ["f", "e", "i1"])
def test_many_slabs_give_what_one_gives(rng, dtype, monkeypatch):
    shrink_blocks(monkeypatch, K_STEP=16, PANEL=512, SLAB=64, _FEWEST_ROWS=3, _MOST_COLUMNS=20)
    a, b = small(rng, (50, 90), dtype), small(rng, (70, 90), dtype).T
    out = np.full((50, 70), 99, "i4" if dtype == "i1" else "f")
    with HostTileExecutor().tile_sum(50, 70, a.dtype, b.dtype, out.dtype) as total:
        total.add(a[:, :40], b[:40])
        total.add(a[:, 40:], b[40:])
        total.finish(out)
    np.testing.assert_array_equal(out, a.astype("d") @ b.astype("d"))


def test_alpha_beta_and_c(rng):
    a, b = small(rng, (4, 6), "f"), small(rng, (6, 5), "f")
    c = small(rng, (4, 5), "f")
    with HostTileExecutor().tile_sum(4, 5, a.dtype, b.dtype, c.dtype) as total:
        total.add(a, b)
        out = np.full((4, 5), np.nan, "f")
        total.finish(out, alpha=2, beta=0, c=np.full_like(c, np.nan))
        np.testing.assert_array_equal(out, 2 * (a @ b))
        out = c.copy()
        total.finish(out, alpha=-1, beta=3, c=out)
        np.testing.assert_array_equal(out, 3 * c - a @ b)
        total.add(np.full_like(a, np.nan), b)
        total.finish(out, alpha=0, beta=1, c=c)
        np.testing.assert_array_equal(out, c)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, 0), (0, 3), (-1, 3), (1, 1)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_sum_may_be_built_in_the_output(rng, alpha, beta, order):
    a, b, c = small(rng, (4, 6), "f"), small(rng, (6, 5), "f"), small(rng, (4, 5), "f")
    out = np.full((4, 5), np.nan, "f", order=order)
    with HostTileExecutor().tile_sum(4, 5, a.dtype, b.dtype, out.dtype, into=out) as total:
        total.add(a[:, :2], b[:2])
        total.add(a[:, 2:], b[2:])
        total.finish(out, alpha, beta, c)
    np.testing.assert_array_equal(out, alpha * (a @ b) + beta * c)
    with HostTileExecutor().tile_sum(4, 5, a.dtype, b.dtype, out.dtype, into=out) as total:
        total.finish(out, alpha, beta, c)
    np.testing.assert_array_equal(out, beta * c)


def test_a_sum_of_nothing_is_zero():
    with HostTileExecutor().tile_sum(2, 3, *[np.dtype("f")] * 3) as total:
        out = np.full((2, 3), np.nan, "f")
        total.finish(out)
        np.testing.assert_array_equal(out, 0)
        total.add(np.empty((2, 0), "f"), np.empty((0, 3), "f"))
        total.finish(out, beta=2, c=np.ones((2, 3), "f"))
        np.testing.assert_array_equal(out, 2)


def test_the_sum_is_rounded_once():
    # Each slice is 2**-11; rounded one by one into float16, 1 would stay 1.
    with HostTileExecutor().tile_sum(1, 1, *[np.dtype("e")] * 3) as total:
        one = np.ones((1, 1), np.float16)
        total.add(one, one)
        for _ in range(64):
            total.add(one, one * np.float16(2.0**-11))
        out = np.zeros((1, 1), np.float16)
        total.finish(out)
    assert out[0, 0] == np.float16(1 + 64 * 2.0**-11)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("layout", ["rows", "strided", "tiny"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(300, 200, 500), (2100, 900, 2300), (8, 20000, 30), (1, 1, 1)], ids=str)
def test_memory_stays_within_what_was_promised(rng, dtype, size, layout):
    m, n, k = size
    if m * k * n > 2**30 and dtype.char not in "ef" and dtype.kind != "V":
        m, n = m // 8, n // 8
    step = 2 if layout == "strided" else 1
    a, b = np.zeros((m, k * step), dtype)[:, ::step], np.zeros((k, n * step), dtype)[:, ::step]
    executor = HostTileExecutor(tiny=layout == "tiny")
    out, c = np.zeros((m, n), "D"), np.zeros((m, n), "D")
    promised = executor.tile_bytes(dtype, dtype, out.dtype, m, n, k)
    tracemalloc.start()
    try:
        with executor.tile_sum(m, n, dtype, dtype, out.dtype, into=out) as total:
            total.add(a, b)
            total.add(a, b)
            total.finish(out, alpha=2, beta=3, c=c)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= promised


def test_scratch_does_not_grow_with_the_tile():
    executor = HostTileExecutor()
    for dtype in DTYPES:
        tile, larger = (executor.tile_bytes(dtype, dtype, dtype, size, size, 10**6) for size in (2**15, 2**16))
        itemsize = choose_arithmetic(dtype, dtype, dtype).total.itemsize
        # The sum is built in an output of its type, and takes memory of its own beside another.
        own = 0 if choose_arithmetic(dtype, dtype, dtype).total == dtype else 2**30 * itemsize
        assert larger - tile == 3 * own
        assert tile - own <= 2**28


def test_refusals():
    executor, f = HostTileExecutor(), np.dtype("f")
    with pytest.raises(DTypeError):
        executor.tile_bytes(np.dtype(object), f, f, 1, 1, 1)
    with executor.tile_sum(2, 2, f, f, f) as total:
        with pytest.raises(ShapeError):
            total.add(np.ones((2, 3), f), np.ones((2, 2), f))
        with pytest.raises(ShapeError):
            total.add(np.ones((3, 2), f), np.ones((2, 2), f))
        total.add(np.ones((2, 2), f), np.ones((2, 2), f))
        with pytest.raises(ShapeError):
            total.finish(np.ones((2, 3), f))
        with pytest.raises(ShapeError):
            total.finish(np.ones((2, 2), f), beta=1, c=np.ones((1, 2), f))
        with pytest.raises(ArgumentError):
            total.finish(np.ones((2, 2), f), beta=1)
        with pytest.raises(DTypeError):
            total.finish(np.ones((2, 2), np.int32))
    with pytest.raises(ArgumentError, match="closed"):
        total.finish(np.ones((2, 2), f))


@pytest.mark.parametrize(("dtype", "rounding"), [("f4", 2**-24), ("f8", 2**-53), ("c8", 2**-22)])
@pytest.mark.parametrize("shape", [(53, 625, 94), (17, 417, 38), (128, 500, 200), (1, 300_000, 3), (700, 2, 700)])
def test_small_tiles_start_no_threads_of_blas(dtype, rounding, shape, monkeypatch):
    sizes, matmul = [], np.matmul

    def noting(a, b, **more):
        blocks = a.shape[0] * b.shape[1] if a.ndim == 4 else 1
        sizes.extend(blocks * [a.shape[-2] * a.shape[-1] * b.shape[-1]])
        return matmul(a, b, **more)

    m, k, n = shape
    rng = np.random.default_rng()
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    tile = np.full((m, n), np.nan, dtype)
    monkeypatch.setattr(np, "matmul", noting)
    with HostTileExecutor().tile_sum(m, n, a.dtype, b.dtype, tile.dtype, into=tile) as tile_sum:
        tile_sum.add(a, b)
        tile_sum.add(a, b)
        tile_sum.finish(tile, 1)
    assert max(sizes) < (2**16 if tile.dtype.kind == "c" else 2**19)
    assert sum(sizes) == 2 * m * k * n
    wide = np.result_type(dtype, "g")
    exact, magnitude = (2 * (f(a).astype(wide) @ f(b).astype(wide)) for f in (np.asarray, np.abs))
    assert (np.abs(tile - exact) <= (2 * k + 8) * rounding * magnitude).all()


def test_large_tiles_are_one_call_of_blas(monkeypatch):
    calls, matmul = [], np.matmul
    monkeypatch.setattr(np, "matmul", lambda *given, **more: calls.append(1) or matmul(*given, **more))
    a, b, tile = np.ones((512, 512), "f4"), np.ones((512, 512), "f4"), np.empty((512, 512), "f4")
    with HostTileExecutor().tile_sum(512, 512, a.dtype, b.dtype, tile.dtype, into=tile) as tile_sum:
        tile_sum.add(a, b)
        tile_sum.finish(tile)
    assert len(calls) == 1
    assert (tile == 512).all()
