"""The choice among the forms of a product: as it is, for its C or epilogue, of parts of K, of a merged batch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

from gemmule.core.dtype import Kind, Precision
from gemmule.core.epilogue_inputs import num_b_of
from gemmule.core.errors import NoKernelError
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.k_parts import PARTS, KParts, has_k_parts
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.merged_batch import MergedBatch, has_merged_batch
from gemmule.core.problem import GemmProblem, Problem, split_batch
from gemmule.core.product_forms import (
    COPY,
    GATE,
    INPUT,
    SUMS,
    Form,
    Step,
    has_sums,
    is_read_in_place,
    with_c_as_input,
)
from gemmule.core.real_parts import RealParts, has_parts
from gemmule.core.spec import Choice, KernelSpec

from ..registry import kernels_of
from .candidates import part_of
from .config_choice import predicted_us

#: ``choose(problem, registry)`` is the choice for a problem, as it is, among kernels, the best first.
Choose = Callable[[Problem, Sequence[KernelSpec]], Choice]
#: Bytes that a further launch moves in a microsecond on an H200 where its kernel predicts no time.
_MOVED = 2.7e6
#: Microseconds by which a transpose beside a real product takes less than alone, as its kernels overlap with it: 2.1 in
#: the mean of eleven small products, 1.6 or more at 256 and 1024 cubed (record 20261130T093532).
_OVERLAPPED = 2.0
#: Most bytes of accumulators in a workspace, where another form takes none: results may nearly fill the memory.
_MOST_WORKSPACE = 16 << 30
#: The kernel that takes every problem, slowly.
GEMM_REFERENCE = "gemm_reference"
#: The transpose of any strides, which takes ten times as long as a product of K = 0: 1.9 ms of 4096 x 4096 elements, of
#: which every other one is read (record 20261130T001854).
_SLOW_TRANSPOSE = "transpose_reference"
#: The kernel of aligned matrices, and that of others: where only C is not aligned, the first was faster with C as an
#: input or copied in each case timed (record 20261130T001854).
_ALIGNED, _UNALIGNED = "hopper_gemm", "hopper_gemm_unaligned"
#: The kernel of dot products, and the most rows or columns of which it is compared with others.
_DOTS, _MOST_DOTS = "simt_dot", 16
#: Least microseconds, of launches as long as an H200's, of a product that is compared with it, and with parts of K or a
#: merged batch; the largest share of them that these may take by prediction; and the microseconds that such a form must
#: save, as the host queues more launches.
_LEAST_US, _LEAST_OF_FORMS, _SHARE, _GAIN = 8.0, 15.0, 0.7, 8.0
#: Kernels that compute epilogues, and write results of other types and strides, of products which faster ones compute.
_LAST_RESORTS = (GEMM_REFERENCE, "mma_sync_gemm", "simt_batched")


def best_form(problem: Problem, registry: Sequence[KernelSpec], choose: Choose, gpu: GpuRates | None) -> Choice:
    """Return the choice for a problem as it is, or in the form that is predicted to take less time.

    Parameters and errors as of `choices_of_forms`.
    """
    if not isinstance(problem, GemmProblem):
        return choose(problem, registry)
    # Where kernels are taken in their order, that of dot products is not: large results take long in it.
    usual, dots = _kernels(tuple(registry))
    try:
        choice = _usual_form(problem, usual, choose, gpu)
    except NoKernelError:
        # Its error names all kernels.
        choice = _usual_form(problem, registry, choose, gpu)
    us = predicted_us(choice, problem)
    if gpu is None or us is None or us < _LEAST_US * gpu.launch:
        return choice
    best = _by_dots(problem, dots, choose)
    if best is None or _predicted(best) >= _SHARE * us:
        best = choice
    if us > _LEAST_OF_FORMS * gpu.launch:
        forms: list[KParts | MergedBatch] = [KParts(parts) for parts in PARTS] if has_k_parts(problem) else []
        if len(problem.batch) > 1 and part_of(problem, choice.spec)[1] > 1 and has_merged_batch(problem):
            forms.append(MergedBatch())
        found = [one for form in forms if (one := _in_form(problem, form, (usual, dots), choose, gpu)) is not None]
        form_best = min(found, key=_predicted, default=best)
        if _predicted(form_best) < min(_SHARE * us, _predicted(best), us - _GAIN * gpu.launch):
            return form_best
    return best


@cache_for_configs
def _kernels(registry: tuple[KernelSpec, ...]) -> tuple[tuple[KernelSpec, ...], tuple[KernelSpec, ...]]:
    """Return the kernels that are taken in their order, or all, and that of dot products, if it is one of them."""
    dots = tuple(spec for spec in registry if spec.name == _DOTS)
    return tuple(spec for spec in registry if spec.name != _DOTS) or registry, dots


def _predicted(choice: Choice) -> float:
    return math.inf if choice.predicted_us is None else choice.predicted_us


def _by_dots(problem: GemmProblem, dots: Sequence[KernelSpec], choose: Choose) -> Choice | None:
    """Return the choice of the kernel of dot products, for few rows or columns, or None where it does not take them."""
    if not dots or min(problem.m, problem.n) > _MOST_DOTS or part_of(problem, dots[0])[1] > 1:
        return None
    try:
        return choose(problem, dots)
    except NoKernelError:
        return None


def _in_form(
    problem: GemmProblem,
    form: KParts | MergedBatch,
    kernels: tuple[Sequence[KernelSpec], Sequence[KernelSpec]],
    choose: Choose,
    gpu: GpuRates,
) -> Choice | None:
    """Return the choice for a form of a whole product, or None where a kernel does not take it in one launch.

    The kernels are those that are taken in their order, and that of dot products.
    """
    registry, dots = kernels
    try:
        product = form.product(problem)[0]
        large = sum(form.workspaces(problem).values()) > _MOST_WORKSPACE
        usual = choose(product, registry)
        several = part_of(product, usual.spec)[1] > 1
        every = [one for one in (None if several else usual, _by_dots(product, dots, choose)) if one is not None]
        choice = min(every, key=lambda one: predicted_us(one, product) or math.inf, default=None)
        us = None if choice is None else predicted_us(choice, product)
        if choice is None or us is None or large:
            return None
        steps = [_further(one, choose, gpu) for one in form.steps(problem)]
    except NoKernelError:
        return None
    form = dataclasses.replace(form, kernels=tuple((step.spec, step.config) for step, _ in steps))
    return dataclasses.replace(choice, form=form, predicted_us=us + sum(one for _, one in steps))


def _usual_form(problem: GemmProblem, registry: Sequence[KernelSpec], choose: Choose, gpu: GpuRates | None) -> Choice:
    """Return the choice for a problem as it is, or in a form that a C, an epilogue or a result needs."""
    if is_read_in_place(problem) and not has_parts(problem):
        d, mixed = problem.d, problem.a.dtype != problem.b.dtype
        several = mixed or d.dtype != problem.a.dtype
        others = problem.epilogue is not None or several or not (d.is_row_major or d.is_col_major)
        others = others and has_sums(problem)
        try:
            choice = choose(problem, registry)
        except NoKernelError:
            if not others:
                raise
        else:
            gated, copies = num_b_of(problem.epilogue) > 1, choice.spec.next_kernel is not None
            # Complex results of another type may be emulated in a workspace.
            complex_ = d.dtype.kind is Kind.COMPLEX
            native = problem.precision is Precision.OZAKI and complex_ and not copies
            forms = gated or mixed or (complex_ and several)
            if not others or not (native or (copies and forms) or choice.spec.name in _LAST_RESORTS):
                return choice
            if mixed and not gated and copies:
                # Kernels without epilogues may read both types as they are; no other form copies less.
                found = choices_of_forms(problem, registry, choose, gpu)[0]
                return choice if found.spec.next_kernel is not None else found
    return choices_of_forms(problem, registry, choose, gpu)[0]


def choices_of_forms(
    problem: GemmProblem, registry: Sequence[KernelSpec], choose: Choose, gpu: GpuRates | None
) -> list[Choice]:
    """Return the choice of each form of a product, the best first.

    Parameters
    ----------
    registry : sequence of KernelSpec
        The kernels of the product.
    choose : callable
        Chooses for one form; it raises a NoKernelError where no kernel supports that.
    gpu : GpuRates or None
        Rates of the GPU, for the order by predicted time; without them it is by the order of the kernels.

    Raises
    ------
    NoKernelError
        If no kernel supports any form: that of the product as it is.
    """
    found: list[tuple[tuple[float, int], Choice]] = []
    errors: list[NoKernelError] = []
    ranks = {spec.name: rank for rank, spec in enumerate(registry)}
    for one in _forms(problem):
        form = one
        try:
            product = problem if form is None else form.product(problem)[0]
            choice = choose(product, registry)
            us = predicted_us(choice, product)
            if form is not None and form.name != INPUT:
                inner, outer, _ = split_batch(problem, choice.batch_dims)
                if found and sum(form.workspaces(inner).values()) > _MOST_WORKSPACE:
                    continue
                steps = [_further(one, choose, gpu) for one in form.steps(inner)]
                form = dataclasses.replace(form, kernels=tuple((step.spec, step.config) for step, _ in steps))
                less = _OVERLAPPED * gpu.launch if gpu is not None and isinstance(form, RealParts) else 0.0
                us = None if us is None else us + sum(max(one - less, 0.0) for _, one in steps) * math.prod(outer)
        except NoKernelError as error:
            errors.append(error)
            continue
        key = (math.inf if us is None or gpu is None else us, ranks[choice.spec.name])
        found.append((key, dataclasses.replace(choice, form=form, predicted_us=us)))
    if not found:
        raise errors[0]
    if any(choice.spec.name == _ALIGNED and choice.form is not None for _, choice in found):
        found = [one for one in found if one[1].spec.name != _UNALIGNED]
    return [choice for _, choice in sorted(found, key=lambda one: one[0])]


def _forms(problem: GemmProblem) -> Iterator[Form | RealParts | None]:
    """Yield the forms of a product, that of the product as it is first, without the kernels of further launches."""
    yield None
    if has_parts(problem):
        yield RealParts()
    c = problem.c
    if c is not None and not is_read_in_place(problem):
        if with_c_as_input(problem) is not None:
            yield Form(INPUT)
        # Inputs of an epilogue may share the result's memory.
        if problem.epilogue is None and problem.d.dtype.holds(c.dtype):
            yield Form(COPY)
    if has_sums(problem) and problem.needed is None:
        if problem.epilogue is not None and problem.epilogue.second is not None:
            yield Form(GATE)
        yield Form(SUMS)


def _further(step: Step, choose: Choose, gpu: GpuRates | None) -> tuple[Choice, float]:
    """Return the choice of a form's further launch, and its predicted microseconds."""
    found = _choose_step(step.problem, choose)
    slow = part_of(step.problem, found.spec)[1] > 1 or found.spec.name == _SLOW_TRANSPOSE
    if step.as_product is not None and slow:
        step = step.as_product
        found = _choose_step(step.problem, choose)
    if part_of(step.problem, found.spec)[1] > 1:
        raise NoKernelError(())
    if gpu is None:
        return found, 0.0
    return found, predicted_us(found, step.problem) or gpu.moved_us(step.problem.bytes_min, _MOVED) + gpu.launch


def _choose_step(problem: Problem, choose: Choose) -> Choice:
    if not isinstance(problem, GemmProblem):
        return choose(problem, kernels_of("transpose"))
    reference = [spec for spec in kernels_of("gemm") if spec.name == GEMM_REFERENCE]
    return choose(problem, _kernels_of_one_launch() if problem.k else reference)


@functools.cache
def _kernels_of_one_launch() -> tuple[KernelSpec, ...]:
    """Return the kernels of products that no other kernel follows: each step is one launch."""
    return tuple(spec for spec in kernels_of("gemm") if spec.next_kernel is None)
