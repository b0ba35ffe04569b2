"""grouped_gemv on the virtual GPU, all checks on: rows that name their matrices, of any strides, or none."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.spec import Choice
from gemmule.kernels.mma_sync.grouped_gemv.config import GemvConfig
from gemmule.kernels.mma_sync.grouped_gemv.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned
from support.stray_writes import nothing_strays
from support.vgpu.kernel_products import matrix

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

GATED = next(config for config in SPEC.configs if config.tile_n % 32 == 0)
#: Matrices are 0 to 6: these are some of them, and numbers that are none.
NUMBERS = np.array([5, 0, 5, 7, -1, 2, 2**31 - 1, -(2**31)], np.int32)
NONE = [3, 4, 6, 7]


def multiply(a, b, numbers, d, config):
    """Multiply by weights (matrices, n, k) as a layer has them."""
    problem = GroupedProblem("row", *d.shape, a.shape[1], len(b), matrix(a), matrix(b.swapaxes(1, 2)), matrix(d))
    assert SPEC.why_not(problem, virtual_arch(), config) is None
    arrays = {"a": a, "b": b.swapaxes(1, 2), "matrices": numbers, "d": d}
    with nothing_strays(d):
        run_kernel(problem, Choice(SPEC, config), arrays, Options(checks=True))


def checked(a, b, numbers, d):
    there = (numbers >= 0) & (numbers < len(b))
    assert not d[~there].any()
    for row in np.flatnonzero(there):
        assert_product(d[row : row + 1], a[row : row + 1], b[numbers[row]].T)


@pytest.mark.parametrize("config", [*SPEC.configs, GemvConfig(tile_n=48, warps=2, unroll=1)], ids=str)
def test_every_config(config, rng):
    """Lines end within a warp's part; a row without a matrix holds NaN, as do the matrices that no row names."""
    a, b = (rng.standard_normal(shape).astype(BFLOAT16.numpy()) for shape in ((8, 1096), (7, 136, 1096)))
    b[[1, 3, 4, 6]], a[NONE] = np.nan, np.nan
    d = poisoned(BFLOAT16, (8, 136))
    multiply(a, b, NUMBERS, d, config)
    checked(a, b, NUMBERS, d)


@pytest.mark.parametrize(("dtype", "out"), [(BFLOAT16, FLOAT32), (FLOAT16, FLOAT16)], ids=["bfloat16", "float16"])
def test_random_strides_and_numbers(dtype, out, rng):
    """What is between lines, and between rows of the result, holds NaN."""
    for _ in range(4):
        m, n, groups = (int(rng.integers(1, most)) for most in (10, 70, 9))
        k, beyond = 8 * int(rng.integers(1, 40)), 8 * int(rng.integers(0, 3))
        a, b = (rng.standard_normal(shape).astype(dtype.numpy()) for shape in ((m, k), (groups, n, k)))
        a, b = (np.pad(x, (*[(0, 0)] * (x.ndim - 1), (0, beyond)), constant_values=np.nan)[..., :k] for x in (a, b))
        numbers = rng.integers(-1, groups + 1, m).astype(np.int32)
        a[(numbers < 0) | (numbers >= groups)] = np.nan
        d = poisoned(out, (m, 3 * n))[:, :n]
        multiply(a, b, numbers, d, SPEC.default)
        checked(a, b, numbers, d)


def test_rows_that_are_one(rng):
    """A token's row for each of its slots, by a stride of 0."""
    one, b = (rng.standard_normal(shape).astype(BFLOAT16.numpy()) for shape in ((1, 264), (4, 40, 264)))
    a, d = np.broadcast_to(one, (3, 264)), poisoned(BFLOAT16, (3, 40))
    numbers = np.array([3, 0, 3], np.int32)
    multiply(a, b, numbers, d, SPEC.default)
    checked(a, b, numbers, d)
    # TMA takes no such rows: no other kernel does.
    plan = gm.grouped_gemm.plan(a, b.swapaxes(1, 2), matrices=numbers, executor="vgpu")
    assert plan.kernel == SPEC.name
    checked(a, b, numbers, plan.execute())


@pytest.mark.parametrize("epilogue", ["plus one", "swiglu"])
def test_epilogues(epilogue, rng):
    """A row without a matrix is zero, whatever the epilogue is."""
    function = (lambda acc: acc + 1) if epilogue == "plus one" else epilogue
    columns = 136 * (1 + (epilogue == "swiglu"))
    a, b = (rng.integers(-4, 5, shape).astype(BFLOAT16.numpy()) for shape in ((8, 72), (7, columns, 72)))
    b[[1, 3, 4, 6]], a[NONE] = np.nan, np.nan
    d = poisoned(BFLOAT16, (8, 136))
    # The host refuses these numbers; a kernel has what is on the device.
    numbered, b = np.where((NUMBERS >= 0) & (NUMBERS < 7), NUMBERS, 0).astype(np.int32), b.swapaxes(1, 2)
    plan = gm.grouped_gemm.plan(a, b, matrices=numbered, epilogue=function, out=d, executor="vgpu")
    arrays = {"a": a, "b": b[..., :136], "matrices": NUMBERS, "d": d, "u": b[..., 136:]}
    wanted = {name: arrays[name] for name in plan.problem.operands()}
    with nothing_strays(d):
        run_kernel(plan.problem, Choice(SPEC, GATED), wanted, Options(checks=True))
    exact = gm.grouped_gemm(a.astype(np.float64), b.astype(np.float64), matrices=numbered, epilogue=function)
    exact[NONE] = 0
    np.testing.assert_allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-4)
    assert np.abs(exact).max() > 1
