"""Code of products with scales by blocks: registers suffice, and nothing waits for a scale in front of wgmma."""

from __future__ import annotations

import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.block_scales import BLOCK
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3
from gemmule.core.signature import adds_key, major_keys, type_keys
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from support.code.wgmma_waits import ARCH, early

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

TYPES = (*type_keys(FLOAT8_E4M3, FLOAT8_E4M3, BFLOAT16), *major_keys("k", "k"), *adds_key(False))
LARGE = HopperGemmConfig(tile_m=128, tile_n=192, stages=4, cluster_m=1)
HALVES = HopperGemmConfig(tile_m=128, tile_n=256, stages=4, cluster_m=1)
TALL = HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=1)
TALL_CLUSTERS = HopperGemmConfig(tile_m=256, tile_n=112, stages=4, cluster_m=2, group=4)
MIDDLE = HopperGemmConfig(tile_m=128, tile_n=128, stages=5, cluster_m=1)


@pytest.mark.parametrize(
    ("config", "lines"),
    [
        (LARGE, (1, BLOCK)),
        (HALVES, (1, BLOCK)),
        (TALL, (1, 1)),
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
    # What would be loaded into registers, the assembler would use before the product.
    assert not re.search(r"\bld\.global", artifact.ptx)
