"""The decision of the guard of ``precision="ozaki"`` for a planned product: whether it is emulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem, outer_offsets, split_batch
from gemmule.core.real_parts import RealParts, into_rows
from gemmule.core.spec import Choice

from .plan_lines import arithmetic_of

#: ``decide(problem, choice, offsets)`` runs the guard on a part of a batch, at element offsets of A and B, and gives
#: the words that it wrote.
Decide = Callable[[GemmProblem, Choice, dict[str, int]], list[int]]


def is_guarded(problem: GemmProblem, choice: Choice) -> bool:
    """Return whether a guard decides how a product is computed."""
    return problem.precision is Precision.OZAKI and choice.spec.name in ("ozaki_gemm", "ozaki_complex", "bf16x6_gemm")


def decided(problem: GemmProblem, choice: Choice, decide: Decide) -> tuple[str, ...]:
    """Return the precisions in which a product computes: of each launch of the outer batch, or one without a guard."""
    if not is_guarded(problem, choice):
        return (arithmetic_of(choice, problem).value,)
    from gemmule.kernels.emulation.decision import decision_choice, decision_name

    inner, outer, strides = split_batch(problem, choice.batch_dims)
    form = choice.form
    if isinstance(form, RealParts):
        # The guard writes its words to D.
        inner = into_rows(inner)
        form = RealParts(form.kernels[: len(RealParts().steps(inner))])
        product, _ = form.product(inner)
        guard = dataclasses.replace(decision_choice(product, choice.gpu), form=form)
    else:
        # The guard does not read C, whose layout may be one that the kernel takes in another form only.
        product = inner if form is None else form.product(inner)[0]
        inner = product = dataclasses.replace(product, c=None, beta=0, epilogue=None)
        guard = decision_choice(product, choice.gpu)
    every = (dict(zip(strides, one, strict=True)) for one in outer_offsets(outer, list(strides.values())))
    return tuple(decision_name(product, decide(inner, guard, offsets)) for offsets in every)
