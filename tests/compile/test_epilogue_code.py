"""Kernels with an epilogue: spills, their recipe fits, and sums of a wgmma are touched behind the wait for it."""

from __future__ import annotations

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
SPECS = {spec.name: spec for spec in REGISTRY}
KIND = dtype_named("bfloat16")
_MOST_SUMS, _MOST_SPILLED = 384, 200
GELU = Expression(("acc", "e0", "add 0 1", "gelu 2"))
GATED_WITH_C = Expression(("c", "acc", "e0", "e1", "mul 1 3", "add 2 4", "gate 5 5", "s0", "mul 6 7", "add 0 8"))


def problem(expression):
    column, row = StridedMatrix(KIND, 512, 768, 0, 1), StridedMatrix(dtype_named("float32"), 512, 768, 1, 0)
    c = contiguous(KIND, 512, 768) if expression.names_c else None
    inputs = (column, row) if "e1" in expression.steps else (column,)
    epilogue = Epilogue(expression, inputs, (0.5,) * expression.numbers)
    a, b, d = contiguous(KIND, 512, 512), contiguous(KIND, 512, 768), contiguous(KIND, 512, 768)
    return GemmProblem(512, 768, 512, (), a, b, c, d, epilogue=epilogue)


def compiled(spec, config, arch, expression):
    product = problem(expression)
    assert spec.why_not(product, arch, config) is None
    artifact = artifact_for(spec, config, spec.signature(product, config), arch)
    artifact.check_launch(spec.launch(product, config))
    return artifact


HOPPER_CONFIGS = [
    pytest.param(config, id=str(config).replace(" ", ","), marks=() if number == 2 else pytest.mark.slow)
    for number, config in enumerate(SPECS["hopper_gemm"].configs)
]


# What the gated activation needs is more than what the other one does.
@pytest.mark.parametrize(
    "expression",
    [pytest.param(GELU, marks=pytest.mark.slow, id="gelu"), pytest.param(GATED_WITH_C, id="gated with C")],
)
@pytest.mark.parametrize("config", HOPPER_CONFIGS)
def test_h09(config, expression):
    artifact = compiled(SPECS["hopper_gemm"], config, HOPPER, expression)
    assert early(artifact.ptx) == []
    # Beside 192 sums of a thread there are too few registers for some epilogues.
    assert artifact.resources.spill_bytes <= (0 if config.mma_tiles_m * config.tile_n < _MOST_SUMS else _MOST_SPILLED)


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_100a", marks=pytest.mark.slow)])
def test_mma_sync_gemm(arch):
    artifact = compiled(SPECS["mma_sync_gemm"], SPECS["mma_sync_gemm"].default, Arch.parse(arch), GATED_WITH_C)
    assert artifact.resources.spill_bytes == 0


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_100a", marks=pytest.mark.slow)])
def test_reference(arch):
    artifact = compiled(SPECS["gemm_reference"], SPECS["gemm_reference"].default, Arch.parse(arch), GATED_WITH_C)
    assert artifact.resources.spill_bytes == 0
