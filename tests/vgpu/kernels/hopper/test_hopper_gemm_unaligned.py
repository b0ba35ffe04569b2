"""hopper_gemm_unaligned on the virtual GPU, all checks on: unaligned results, C, layouts, both schedules of tiles."""

from __future__ import annotations

import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm_unaligned.config import UnalignedGemmConfig
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Turns with the smallest tile, and the smallest that both warpgroups share: what calls take is compiled longer.
TURNS, SHARED = SPEC.configs[-1], UnalignedGemmConfig(tile_n=64, stages=4, pingpong=0)
CONFIGS = [TURNS, SHARED, *(pytest.param(one, marks=pytest.mark.slow) for one in SPEC.configs if not one.pingpong)]


def multiply(a, b, d, c=None, alpha=1, beta=0, config=TURNS):
    problem = problem_of(a, b, d, c, alpha, beta)
    assert SPEC.why_not(problem, virtual_arch(), config) is None
    arrays = {"a": a, "b": b, "d": d} | ({"c": c} if c is not None else {})
    run_kernel(problem, Choice(SPEC, config), arrays, Options(checks=True))
    return d


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
