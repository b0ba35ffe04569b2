"""Small tiles of products leave registers of an SM for the copies of operands beside them."""

from __future__ import annotations

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.kernels.hopper.gemm_repacked.config import PackingConfig
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_unaligned.config import UnalignedGemmConfig
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC
from gemmule.kernels.hopper.tile_config import THREADS
from gemmule.lab.products import gemm_problem

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCH = Arch(9, 0, True)
#: Registers of an SM, and of a warp as they are allotted.
REGISTERS, ALLOTTED = 1 << 16, 256


def registers(spec, config, problem, threads):
    resources = artifact_for(spec, config, spec.signature(problem, config), ARCH).resources
    assert resources.spill_bytes == 0
    return -(-resources.registers * 32 // ALLOTTED) * ALLOTTED * threads // 32


@pytest.mark.parametrize(("config", "copies"), [(UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8), 4),
                                                (UnalignedGemmConfig(tile_m=64, tile_n=128, stages=6), 2)],
                         ids=["64x64", "64x128"])  # fmt: skip
def test_copies_fit_beside_a_product(config, copies):
    product = gemm_problem(65, 71, 72, "bfloat16", "bfloat16", "nt")
    packing, packed = PackingConfig(threads=256, vectors=1), gemm_problem(65, 71, 73, "bfloat16", "bfloat16", "nt")
    beside = registers(REPACKED, packing, packed, packing.threads)
    assert registers(SPEC, config, product, THREADS) + copies * beside <= REGISTERS
