"""Code of products with scales by blocks: registers suffice, and nothing waits for a scale in front of wgmma."""

from __future__ import annotations

import dataclasses
import re

import pytest

from gemmule.api.epilogues.scaling import Scaling
from gemmule.compiler.cache import artifact_for
from gemmule.core.block_scales import BLOCK
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT32, Precision
from gemmule.core.epilogue import Epilogue
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import adds_key, major_keys, type_keys
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from support.code.wgmma_waits import ARCH, early, is_serialised

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

TYPES = (*type_keys(FLOAT8_E4M3, FLOAT8_E4M3, BFLOAT16), *major_keys("k", "k"), *adds_key(False))
LARGE = HopperGemmConfig(tile_m=128, tile_n=192, stages=4, cluster_m=1)
HALVES = HopperGemmConfig(tile_m=128, tile_n=256, stages=4, cluster_m=1)
TALL = HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=1)
TALL_CLUSTERS = HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=2, group=4)
MIDDLE = HopperGemmConfig(tile_m=128, tile_n=128, stages=5, cluster_m=1)
WIDEST = HopperGemmConfig(tile_m=128, tile_n=208, stages=4, cluster_m=1)


def product(n, *, adds=False):
    """One with scales of rows and columns as inputs of the epilogue, or with a C instead."""
    m, k = 512, 256
    a, b = contiguous(FLOAT8_E4M3, m, k), contiguous(FLOAT8_E4M3, n, k).transposed()
    d = contiguous(BFLOAT16, m, n)
    problem = GemmProblem(m, n, k, (), a, b, d if adds else None, d, precision=Precision.FLOAT8)
    if adds:
        return problem
    expression, _ = Scaling(None, True, False, False).traced
    inputs = StridedMatrix(FLOAT32, m, n, 1, 0), StridedMatrix(FLOAT32, m, n, 0, 1)
    return dataclasses.replace(problem, epilogue=Epilogue(expression, inputs))


@pytest.mark.parametrize("adds", [False, True])
def test_the_widest_tile_that_is_promoted_whole_leaves_registers(adds):
    """With scales of rows and columns as inputs of the epilogue, whose tiles are half as wide."""
    artifact = artifact_for(SPEC, WIDEST, SPEC.signature(product(416, adds=adds), WIDEST), ARCH)
    assert artifact.resources.spill_bytes == 0
    assert early(artifact.ptx) == []
    assert not is_serialised(artifact)


@pytest.mark.parametrize(
    ("config", "lines"),
    [
        (LARGE, (1, BLOCK)),
        (HALVES, (1, BLOCK)),
        pytest.param(TALL, (1, 1), marks=pytest.mark.slow),
        (TALL_CLUSTERS, (1, 1)),
        pytest.param(MIDDLE, (1, 1), marks=pytest.mark.slow),
        pytest.param(MIDDLE, (BLOCK, 1), marks=pytest.mark.slow),
    ],
)
def test_scales_leave_registers(config, lines):
    scales = tuple(zip(("scale_a", "scale_b"), map(str, lines), strict=True))
    artifact = artifact_for(SPEC, config, (*TYPES, ("epilogue", "acc"), ("inputs", ""), *scales), ARCH)
    assert artifact.resources.spill_bytes == 0
    assert early(artifact.ptx) == []
    assert not is_serialised(artifact)
    # What would be loaded into registers, the assembler would use before the product.
    assert not re.search(r"\bld\.global", artifact.ptx)


def test_a_narrow_tile_has_an_instruction_of_its_own():
    scales = ("epilogue", "acc"), ("inputs", ""), ("scale_a", "1"), ("scale_b", "1")
    artifact = artifact_for(SPEC, MIDDLE, (*TYPES, *scales), ARCH)
    assert set(re.findall(r"wgmma\.mma_async\S*m64n(\d+)k32", artifact.ptx)) == {"128", "64"}
    assert artifact.resources.spill_bytes == 0
    assert early(artifact.ptx) == []
    assert not is_serialised(artifact)


@pytest.mark.parametrize("config", [LARGE, WIDEST])
def test_the_epilogue_loads_no_scale_of_rows_and_columns(config):
    """They are loaded before the main loop, those of columns by all lanes of a warp."""
    artifact = artifact_for(SPEC, config, SPEC.signature(product(2 * config.tile_n), config), ARCH)
    before, _, epilogue = artifact.ptx.rpartition("wgmma.wait_group")
    assert re.search(r"\bld\.global", before)
    assert "stmatrix" in epilogue
    assert not re.search(r"\bld\.global", epilogue)
