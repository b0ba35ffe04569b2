"""Triton kernels run as they are called on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule import vgpu
from gemmule.core.errors import ArgumentError

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


@pytest.fixture(scope="module")
def kernels():
    from support.vgpu import triton_kernels

    return triton_kernels


def test_arrays_are_written_in_place(rng, kernels):
    count = 1000
    x, y, out = rng.random(count, np.float32), rng.random(count, np.float32), np.full(count, np.nan, np.float32)

    def grid(known):
        return (-(-count // known["block"]),)

    vgpu.run_triton(kernels.scaled_sum, grid, x, y, out, count, 2.0, shift=0, block=256, schedules=3)
    np.testing.assert_allclose(out, 2 * x + y, rtol=1e-6)


def test_a_store_past_the_end_is_found(kernels):
    x, y, out = (np.zeros(128, np.float32) for _ in range(3))
    with pytest.raises(vgpu.CheckError, match=r"out of bounds in scaled_sum, at .*triton_kernels\.py:\d+ `tl\.store"):
        vgpu.run_triton(kernels.scaled_sum, 1, x, y, out, 128, 2.0, 1, block=128)


def test_a_product_with_its_first_config_and_heuristics(rng, kernels):
    m, n, k = 70, 80, 100
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    d = np.full((m, n), np.nan, np.float32)
    vgpu.run_triton(kernels.product, (2, 2), a, b, d, m, n, k, k, n, n, schedules=3)
    np.testing.assert_allclose(d, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "scaled_sum is called without x, y"),
        ((1,) * 8, "takes 7 arguments, not 8"),
        (("x", 1, 1, 1, 1, 0, 32), "argument x is of type str; pass an array or a number"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kernels, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        vgpu.run_triton(kernels.scaled_sum, 1, *arguments)


def test_an_option_that_triton_does_not_have_is_refused(kernels):
    x = np.ones(32, np.float32)
    with pytest.raises(ArgumentError, match="has no parameter SIZE, and Triton no option of that name"):
        vgpu.run_triton(kernels.scaled_sum, 1, x, x, x, 1, 1, 0, 32, SIZE=3)


def test_what_is_no_kernel_is_refused():
    with pytest.raises(ArgumentError, match=r"is not a @triton\.jit kernel"):
        vgpu.run_triton(print, 1)
