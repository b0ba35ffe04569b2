"""The machine code of float64_gemm: one instruction for each product on Hopper, asynchronous copies, no stack."""

from __future__ import annotations

import dataclasses
import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.kernels.float64.config import SHAPES
from gemmule.kernels.float64.gemm.spec import SPEC
from support.code.instructions import OPCODES, instructions

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = dataclasses.replace(SPEC.default, tile_n=32, stages=3)


@pytest.mark.parametrize(
    ("arch", "shape"), [("sm_80", (8, 4)), *(("sm_90a", shape) for shape in SHAPES)], ids=lambda value: str(value)
)
def test_tensor_cores_and_asynchronous_copies(arch, shape, monkeypatch):
    monkeypatch.setitem(OPCODES, "DMMA", 0x23F)
    rows, k = shape
    config = dataclasses.replace(SMALL, mma_m=rows, mma_k=k)
    signature = next(s for s in SPEC.signatures(Arch.parse(arch)) if dict(s)["tiles"] == "whole")
    artifact = artifact_for(SPEC, config, signature, Arch.parse(arch))
    found = instructions(artifact)
    products = config.tile_m // config.warps_m // rows * (config.tile_n // config.warps_n // 8) * (config.tile_k // k)
    assert len(re.findall(rf"mma\.sync\.aligned\.m{rows}n8k{k}\.row\.col\.f64", artifact.ptx)) == products
    assert found["DMMA"] == products
    # Those of the first slices and those of the loop: 16 bytes a thread.
    assert found["LDGSTS"] == 2 * (config.tile_m + config.tile_n) * config.tile_k // (2 * config.threads)
    assert artifact.resources.spill_bytes == artifact.resources.stack_bytes == 0
