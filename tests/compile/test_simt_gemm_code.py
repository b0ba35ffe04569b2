"""The machine code of simt_gemm on architectures with fewer instructions than Hopper."""

from __future__ import annotations

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: In whole tiles its one K-major operand is stored as matrices where the target has `stmatrix`.
LARGEST = SimtConfig(tile_m=128, tile_n=256, tile_k=16, warps_m=2, warps_n=4, stages=3)


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_100a", marks=pytest.mark.slow)])
def test_vectors_of_the_largest_tiles_are_stored_on_every_target(arch):
    wanted = {"a_major": "k", "b_major": "n", "tiles": "whole"}
    signature = next(one for one in SPEC.signatures(Arch.parse(arch)) if wanted.items() <= dict(one).items())
    assert dict(signature)["element"] == FLOAT32.name
    artifact = artifact_for(SPEC, LARGEST, signature, Arch.parse(arch))
    assert ("stmatrix" in artifact.ptx) == (arch != "sm_80")
    assert artifact.resources.spill_bytes == 0
