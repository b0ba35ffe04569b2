"""The code of products of few rows: compiled without a GPU, weights widened in registers, as many CTAs as it says."""

from __future__ import annotations

import dataclasses
import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT16
from gemmule.core.layout import contiguous
from gemmule.kernels.hopper.gemm_w8a16.spec import SPEC
from gemmule.lab.products import gemm_problem
from support.code.wgmma_waits import early

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCH = Arch.parse("sm_90a")
CONFIGS = [
    pytest.param(config, id=str(config).replace(" ", ","), marks=[pytest.mark.slow] if number else [])
    for number, config in enumerate(SPEC.configs)
]
#: Registers of a multiprocessor.
_REGISTERS = 1 << 16


@pytest.mark.parametrize("config", CONFIGS)
def test_code(config):
    problem = gemm_problem(100, 200, 2048, "float8_e4m3fn", "bfloat16", "nt")
    if config.stages == config.slots and config.residents == 1:
        # There for these alone.
        problem = dataclasses.replace(problem, a=contiguous(FLOAT16, 100, 2048))
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), ARCH)
    launch = SPEC.launch(problem, config)
    artifact.check_launch(launch)
    assert (artifact.resources.spill_bytes, artifact.resources.stack_bytes) == (0, 0)
    assert launch.threads * artifact.resources.registers * config.residents <= _REGISTERS
    # Every product takes weights from four registers.
    products = re.findall(r"wgmma\.mma_async\S*\s*\{[^}]*\},\s*(\S)", artifact.ptx)
    assert len(products) % 8 == 0 < len(products)
    assert set(products) == {"{"}
    assert "cvt.rn.f16x2.e4m3x2" in artifact.ptx
    assert early(artifact.ptx) == []
    assert told_on_the_way(artifact.ptx) == []


def told_on_the_way(ptx):
    """Return where a warp tells of two barriers between what it reads of weights and the products that have it.

    One may be that of the slot before. Were the other one that of the stage, what is read could still be on its way
    when the copy engine writes what comes next: an arrival waits for no load, and neither does the copy engine.
    """
    events = re.findall(r"ld\.shared\.v4\.b32|mbarrier\.arrive\.shared|wgmma\.mma_async", ptx)
    text = "".join({"l": "r", "m": "t", "w": "p"}[event[0]] for event in events)
    return re.findall(r"rt{2,}(?=p)", text)
