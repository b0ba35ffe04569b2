"""The code of float64_gemm with stream-K: hardly anything is spilled, though half of the registers are accumulators."""

from __future__ import annotations

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

HOPPER = Arch.parse("sm_90a")
#: Most accumulators a thread for its registers, and copies of single elements of K-major operands: most addresses.
HARDEST = Float64Config(tile_n=96, stages=3, mma_k=8, stream_k=1)
#: Most CTAs an SM, and clusters that split K beside them.
SPLIT = Float64Config(tile_m=32, tile_n=64, stages=4, mma_k=8, cluster_k=4, stream_k=1)
#: Bytes that a thread spills at most: what would avoid these costs more.
MOST = 16
EVERY = [(config, signature) for config in SPEC.configs if config.stream_k for signature in SPEC.signatures(HOPPER)]


def of_single_elements_along_k(signature):
    types = dict(signature)
    return (types["a_major"], types["b_major"], types["a_copies"]) == ("k", "k", "8")


def case(config, signature):
    quick = config in (HARDEST, SPLIT) and of_single_elements_along_k(signature)
    return pytest.param(config, signature, id=f"{config}; {signature}", marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("config", "signature"), [case(*one) for one in EVERY])
def test_hardly_anything_is_spilled(config, signature):
    spilled = artifact_for(SPEC, config, signature, HOPPER).resources.spill_bytes
    assert spilled == 0 if config in (HARDEST, SPLIT) else spilled <= MOST


def test_the_hardest_are_registered():
    assert {HARDEST, SPLIT} <= {*SPEC.configs}
