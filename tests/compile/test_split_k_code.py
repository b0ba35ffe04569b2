"""The code of split-K: sums stay in registers, and nothing touches them while a product is under way."""

from __future__ import annotations

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.kernels.hopper.gemm.config_lists import FOR_LONG_K
from gemmule.kernels.hopper.gemm.spec import SPEC
from support.code.wgmma_waits import ARCH, early

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("config", [one for one in FOR_LONG_K if one.split_k], ids=str)
def test_the_code(config):
    signature = SPEC.signatures(ARCH)[0]
    artifact = artifact_for(SPEC, config, signature, ARCH)
    assert early(artifact.ptx) == []
    assert artifact.resources.spill_bytes == 0
    # One flag is set, and one awaited; partial sums go four at a time.
    assert artifact.ptx.count("st.release.gpu.global") == 1
    vectors = config.tile_n * config.mma_tiles_m // 8
    assert artifact.ptx.count("st.global.v4.b32") == artifact.ptx.count("ld.global.v4.b32") == vectors
