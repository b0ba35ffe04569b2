"""hopper_gemm_unaligned on the virtual GPU, all checks on: unaligned results, C, layouts, both schedules of tiles."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_unaligned.config import UnalignedGemmConfig
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC
from gemmule.kernels.hopper.tile_config import MAX_SHARED_BYTES
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Turns with the smallest tile, and the smallest that both warpgroups share: what calls take is compiled longer.
TURNS, SHARED = SPEC.configs[-1], UnalignedGemmConfig(tile_n=64, stages=4, pingpong=0)
CONFIGS = [TURNS, SHARED, *(pytest.param(one, marks=pytest.mark.slow) for one in SPEC.configs if not one.pingpong)]


def multiply(a, b, d, c=None, alpha=1, beta=0, config=TURNS):
    problem = problem_of(a, b, d, c, alpha, beta)
    if a.dtype == np.float32:
        problem = dataclasses.replace(problem, precision=Precision.TF32)
    return run_product(Choice(SPEC, config), problem, a, b, d, c)


@pytest.mark.parametrize("offset", [0, 1, 6])
@pytest.mark.parametrize("shape", [(65, 71, 72), (130, 129, 136)], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.tile_m}x{config.tile_n}")
def test_results_that_begin_anywhere(config, shape, offset, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, BFLOAT16, sides) for sides in ((m, k), (k, n), (m, n)))
    columns, c_late = laid_out(b, "col"), laid_out(c, "row", offset)
    d = laid_out(poisoned(BFLOAT16, (m, n)), "row", offset)
    assert_product(multiply(a, columns, d, c_late, 0.5, 2.0, config), a, b, c, 0.5, 2.0)


@pytest.mark.parametrize("layout", [("row", "row"), ("col", "col"), ("col", "row")], ids="-".join)
def test_layouts_and_a_result_in_columns(layout, rng):
    a, b = random_matrix(rng, FLOAT16, (72, 64)), random_matrix(rng, FLOAT16, (64, 80))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    for kind in ("padded", "col"):
        d = laid_out(poisoned(FLOAT16, (72, 80)), kind, 1)
        assert_product(multiply(*moved, d), a, b)


#: One tile of each schedule, of 64 and of 128 rows.
TF32_CONFIGS = [
    TURNS,
    SHARED,
    *(pytest.param(one, marks=pytest.mark.slow) for one in SPEC.configs if one.shared_bytes_of(4) <= MAX_SHARED_BYTES),
]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("config", TF32_CONFIGS, ids=lambda one: f"{one.tile_m}x{one.tile_n}x{one.stages}")
def test_tf32_into_results_that_begin_anywhere(config, offset, rng):
    m, n, k = 130, 71, 100
    a, b, c = (rng.integers(-4, 5, sides).astype(np.float32) for sides in ((m, k), (k, n), (m, n)))
    d = laid_out(poisoned(FLOAT32, (m, n)), "row", offset)
    multiply(a, laid_out(b, "col"), d, laid_out(c, "row", offset), 2, -1, config)
    np.testing.assert_array_equal(d, 2 * (a @ b) - c)


@pytest.mark.parametrize("layout", [("row", "col"), ("col", "col"), ("row", "row"), ("col", "row")], ids="-".join)
@pytest.mark.parametrize("shape", [(67, 65, 131), (130, 71, 3)], ids=str)
def test_tf32_operands_of_any_alignment_are_copied(layout, shape, rng):
    m, n, k = shape
    a, b = (rng.integers(-4, 5, sides).astype(np.float32) for sides in ((m, k), (k, n)))
    d, moved = poisoned(FLOAT32, (m, n)), [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    problem = dataclasses.replace(problem_of(*moved, d, None, 1, 0), precision=Precision.TF32)
    spec = REPACKED if layout == ("row", "col") else K_MAJOR
    assert spec.why_not(problem, virtual_arch(), spec.default) is None
    run_kernel(problem, Choice(spec, spec.default), {"a": moved[0], "b": moved[1], "d": d}, Options(checks=True))
    np.testing.assert_array_equal(d, a @ b)
