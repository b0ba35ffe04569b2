"""Kernels with gated activations: spills, their recipe fits, and sums of a wgmma are touched behind the wait for it."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import dtype_named
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.registry import REGISTRY
from support.code.wgmma_waits import early

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

HOPPER = Arch.parse("sm_90a")
SPECS = {spec.name: spec for spec in REGISTRY if spec.gated}
KIND = dtype_named("bfloat16")
_MOST_SUMS, _MOST_SPILLED = 384, 200
PLAIN = Expression(("acc", "gate 0 0", "up", "mul 1 2"))
WITH_BIAS = Expression(("acc", "e0", "add 0 1", "gate 2 2", "up", "e1", "add 4 5", "mul 3 6", "c", "add 7 8"))


def problem(expression, **fields):
    column = StridedMatrix(KIND, 512, 384, 0, 1)
    # Along K, as weights usually are.
    b = dataclasses.replace(contiguous(KIND, 384, 512).transposed(), alignment=16)
    c = contiguous(KIND, 512, 384) if expression.names_c else None
    inputs = (column, column) if "e1" in expression.steps else ()
    epilogue = Epilogue(expression, inputs, (), b, **fields)
    return GemmProblem(
        512, 384, 512, (), contiguous(KIND, 512, 512), b, c, contiguous(KIND, 512, 384), epilogue=epilogue
    )


def compiled(spec, config, arch, product):
    artifact = artifact_for(spec, config, spec.signature(product, config), arch)
    artifact.check_launch(spec.launch(product, config))
    return artifact


ABLE = [
    config
    for config in SPECS["hopper_gemm"].configs
    if SPECS["hopper_gemm"].why_not(problem(PLAIN), HOPPER, config) is None
]


@pytest.mark.slow
@pytest.mark.parametrize("config", ABLE, ids=lambda config: str(config).replace(" ", ","))
def test_h09(config):
    for product in (problem(PLAIN), problem(WITH_BIAS, absmax=True)):
        artifact = compiled(SPECS["hopper_gemm"], config, HOPPER, product)
        assert early(artifact.ptx) == []
        assert artifact.resources.spill_bytes <= (
            0 if config.mma_tiles_m * config.tile_n < _MOST_SUMS else _MOST_SPILLED
        )


def test_there_are_configs_of_either_kind():
    assert {config.pingpong for config in ABLE} == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
@pytest.mark.parametrize("name", ["mma_sync_gemm", "gemm_reference"])
def test_the_others(name, arch):
    artifact = compiled(SPECS[name], SPECS[name].default, Arch.parse(arch), problem(WITH_BIAS, absmax=True))
    assert artifact.resources.spill_bytes == 0
