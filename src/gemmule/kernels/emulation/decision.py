"""The guard of ``precision="ozaki"`` by itself: what it decides for two matrices, without the product."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.config import Config
from gemmule.core.dtype import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, Precision
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.core.spec import Choice, KernelSpec, NextKernel

from .bf16x6_gemm.spec import SPEC as BF16X6
from .guard_decision.spec import SPEC as DECISION
from .guard_words import DECISION_WORD
from .ozaki_complex.spec import SPEC as OZAKI_COMPLEX
from .ozaki_gemm.first_launches import PAIRS, SCALES, SET_WORDS
from .ozaki_gemm.spec import SPEC as OZAKI
from .ozaki_guard.spec import SPEC as GUARD

#: Words of a decision.
WORDS = 3
#: Launches of the guard behind the first one.
_MEASURES = (SET_WORDS, PAIRS, SCALES, GUARD)
#: By the type of A: the kernel that begins a guarded product.
_FIRST = {FLOAT64: OZAKI, FLOAT32: BF16X6, COMPLEX64: OZAKI_COMPLEX, COMPLEX128: OZAKI_COMPLEX}


def decision_choice(problem: GemmProblem, gpu: GpuRates = H200_RATES) -> Choice:
    """Return the launches of the guard for a product without batch; D are the words that they write, `WORDS` int32.

    The first word is the number of products that emulate the native one, or 0; the others are how many rows and columns
    of a row-major result the native kernel computes beside them.
    """
    whole = _FIRST[problem.a.dtype]
    return Choice(dataclasses.replace(whole, next_kernel=_guard), whole.default, gpu=gpu)


def _guard(problem: GemmProblem, config: Config, gpu: GpuRates) -> NextKernel:
    """Return the launches up to the decision, which is written to D."""
    whole: KernelSpec = _FIRST[problem.a.dtype]
    assert whole.next_kernel is not None
    every = whole.next_kernel(problem, config, gpu)
    found = NextKernel(DECISION, DECISION.default, problem, {DECISION_WORD: "d"}, {})
    for one in reversed([one for one in every.chain() if one.spec in _MEASURES]):
        found = dataclasses.replace(one, then=found)
    return dataclasses.replace(found, workspaces=every.workspaces)


def decision_name(problem: GemmProblem, words: Sequence[int]) -> str:
    """Return the precision that a decision is: that of the expert form, or ``ieee``, also of some rows and columns."""
    products, *lines = words
    if not products:
        return Precision.IEEE.value
    name = Precision.BF16X6.value if problem.a.dtype == FLOAT32 else f"ozaki-{products}"
    if row_result(problem)[1] == "b":
        lines.reverse()
    counts = [
        f"{count} {kind}{'s' * (count > 1)}" for count, kind in zip(lines, ("row", "column"), strict=True) if count
    ]
    return f"{name}, {Precision.IEEE.value} in {' and '.join(counts)}" if counts else name
