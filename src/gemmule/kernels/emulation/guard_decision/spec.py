"""Spec of the guard's decision."""

from __future__ import annotations

from gemmule.core.dtype import BF16_PRODUCTS, FLOAT32, INT32
from gemmule.core.launch import Launch, Param, ScalarParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import every_signature
from gemmule.core.spec import Signature
from gemmule.kernels.emulation.guard import CHOICES
from gemmule.kernels.emulation.guard_words import DECISION_WORD, SHORTFALL, word_param
from gemmule.kernels.emulation.launch_spec import emulation_spec, launch_us
from gemmule.kernels.emulation.ozaki_config import DecisionConfig


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


SPEC = emulation_spec(
    name="guard_decision",
    summary="how many products emulate the native one, by what the guard measured",
    package=__package__,
    configs=(DecisionConfig(),),
    signatures=every_signature(element=[INT32]),
    signature=_signature,
    launch=_launch,
    cost=launch_us,
)
