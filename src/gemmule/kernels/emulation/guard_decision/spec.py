"""Spec of the guard's decision."""

from __future__ import annotations

from gemmule.core.dtype import BF16_PRODUCTS, FLOAT32, INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, ScalarParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import every_signature
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.emulation.guard import CHOICES
from gemmule.kernels.emulation.guard_words import DECISION_WORD, SHORTFALL, word_param
from gemmule.kernels.emulation.ozaki_config import LAUNCH_US, DecisionConfig
from gemmule.kernels.hopper.refusals import HOPPER, refuse_no_config, refuse_nothing


def _signature(problem: GemmProblem, config: DecisionConfig) -> Signature:
    del problem, config
    return (("element", INT32.name),)


def _launch(problem: GemmProblem, config: DecisionConfig) -> Launch:
    del config
    real = problem.a.dtype
    fewest = BF16_PRODUCTS if real == FLOAT32 else CHOICES[real.part][0]
    params: tuple[Param, ...] = (
        word_param(SHORTFALL),
        word_param(DECISION_WORD),
        ScalarParam("fewest", INT32, fewest),
    )
    return Launch(grid=(1, 1, 1), block=(32, 1, 1), params=params, overlaps=True)


def _cost(problem: GemmProblem, config: DecisionConfig, gpu: GpuRates) -> float:
    del problem, config
    return gpu.launch * LAUNCH_US


SPEC = KernelSpec(
    name="guard_decision",
    operation="gemm",
    summary="how many products emulate the native one, by what the guard measured",
    package=__package__,
    archs=(HOPPER,),
    configs=(DecisionConfig(),),
    signatures=every_signature(element=[INT32]),
    why_not=refuse_no_config,
    signature=_signature,
    launch=_launch,
    refuses=refuse_nothing,
    cost=_cost,
    cost_in_us=True,
)
