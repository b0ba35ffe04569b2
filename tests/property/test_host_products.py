"""What holds for every product on the host."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmule.host.gemm import gemm
from gemmule.host.tiles import HostTileExecutor
from gemmule.host.transpose import transpose

EXTENTS = st.integers(0, 20)
INTEGERS = st.sampled_from([f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)])
FLOATS = st.sampled_from([np.dtype(t) for t in ("e", "f", "d", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)])
SEEDS = st.integers(0, 2**32 - 1)


def exact(x):
    return x.astype(object)


@settings(deadline=None, max_examples=150)
@given(
    EXTENTS, EXTENTS, st.integers(0, 400), INTEGERS, INTEGERS, INTEGERS, st.integers(-9, 9), st.integers(-9, 9), SEEDS
)
def test_integers_are_exact_modulo_the_output(m, n, k, a_dtype, b_dtype, out_dtype, alpha, beta, seed):
    rng = np.random.default_rng(seed)

    def full_range(shape, dtype):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)

    a, b, c = full_range((m, k), a_dtype), full_range((k, n), b_dtype), full_range((m, n), out_dtype)
    out = np.full((m, n), np.iinfo(out_dtype).max, out_dtype)
    gemm(a, b, out, alpha=alpha, beta=beta, c=c)
    bits = 8 * out.itemsize
    # An object matmul over no terms gives None.
    product = exact(a) @ exact(b) if k else np.zeros((m, n), object)
    expected = (alpha * product + beta * exact(c)) % 2**bits
    np.testing.assert_array_equal(exact(out) % 2**bits, expected)


@settings(deadline=None, max_examples=100)
@given(EXTENTS, EXTENTS, EXTENTS, FLOATS, FLOATS, st.lists(st.sampled_from([1, -1, 2]), min_size=6, max_size=6), SEEDS)
def test_small_integers_are_exact_in_every_float_and_layout(m, n, k, a_dtype, b_dtype, steps, seed):
    rng = np.random.default_rng(seed)

    def strided(shape, dtype, by):
        whole = rng.integers(-4, 5, tuple(2 * extent for extent in shape)).astype(dtype)
        return whole[:: by[0], :: by[1]][: shape[0], : shape[1]]

    a, b = strided((m, k), a_dtype, steps[:2]), strided((n, k), b_dtype, steps[2:4]).T
    out = strided((m, n), "d", steps[4:])
    out[...] = np.nan
    gemm(a, b, out)
    np.testing.assert_array_equal(out, a.astype("d") @ b.astype("d"))


@settings(deadline=None, max_examples=50)
@given(EXTENTS, EXTENTS, st.lists(st.integers(0, 9), max_size=5), FLOATS, SEEDS)
def test_a_product_does_not_care_how_k_is_cut(m, n, lengths, dtype, seed):
    rng = np.random.default_rng(seed)
    slices = [(rng.integers(-4, 5, (m, k)).astype(dtype), rng.integers(-4, 5, (k, n)).astype(dtype)) for k in lengths]
    cut, whole = np.full((m, n), np.nan), np.full((m, n), np.nan)
    with HostTileExecutor().tile_sum(m, n, dtype, dtype, cut.dtype) as total:
        for a, b in slices:
            total.add(a, b)
        total.finish(cut)
    a = np.concatenate([np.empty((m, 0), dtype), *(a for a, _ in slices)], axis=1)
    b = np.concatenate([np.empty((0, n), dtype), *(b for _, b in slices)], axis=0)
    gemm(a, b, whole)
    np.testing.assert_array_equal(cut, whole)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 90), max_size=2), st.data(), SEEDS)
def test_transposing_back_is_the_identity(shape, data, seed):
    shape = (*shape, 3)
    axes = data.draw(st.permutations(range(len(shape))))
    x = np.random.default_rng(seed).standard_normal(shape)
    there, back = np.full(x.transpose(axes).shape, np.nan), np.full(shape, np.nan)
    transpose(x, axes, there)
    transpose(there, np.argsort(axes).tolist(), back)
    np.testing.assert_array_equal(back, x)
