"""The two ways to compute a fused multiply-add agree bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.vgpu.numeric.compiled import loops
from gemmule.vgpu.numeric.fma import fma32_numpy, fma64_numpy
from support.ptx.snippets import bits_of, floats


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize(("dtype", "which", "function"), [(np.float32, 0, fma32_numpy), (np.float64, 1, fma64_numpy)])
def test_numpy_and_numba_agree(rng, dtype, which, function, near):
    compiled = loops()
    if compiled is None:
        pytest.skip("Numba is not installed")
    a, b, c = (floats(rng, dtype, 8192) for _ in range(3))
    if near:
        c = (-(a.astype(np.float64) * b).astype(dtype) * (1 + np.finfo(dtype).eps * rng.integers(-2, 3, 8192))).astype(
            dtype
        )
    first, second = np.empty_like(a), np.empty_like(a)
    function(a, b, c, first)
    compiled[which](a, b, c, second)
    both_nan = np.isnan(first) & np.isnan(second)
    np.testing.assert_array_equal(bits_of(first)[~both_nan], bits_of(second)[~both_nan])
    if dtype is np.float32:
        np.testing.assert_array_equal(bits_of(first)[both_nan], bits_of(second)[both_nan])


# Products of the last two are subnormal, and too large.
@pytest.mark.parametrize("size", [1.0, 2.0**-520, 2.0**520])
@pytest.mark.parametrize("addend", ["any", "zero", "near"])
def test_ordinary_numbers_go_a_shorter_way_to_the_same_bits(rng, addend, size):
    a, b = (rng.standard_normal(2048) * size for _ in range(2))
    c = {
        "any": rng.standard_normal(2048),
        "zero": np.where(rng.random(2048) < 0.5, 0.0, -0.0),
        "near": -(a * b) * (1 + np.finfo(np.float64).eps * rng.integers(-2, 3, 2048)),
    }[addend]
    alone, together = np.empty(2048), np.empty(2049)
    fma64_numpy(a, b, c, alone)
    # Beside what is no number all are looked at one by one.
    with np.errstate(all="ignore"):
        fma64_numpy(*(np.append(x, np.nan) for x in (a, b, c)), together)
    np.testing.assert_array_equal(bits_of(alone), bits_of(together[:-1]))
