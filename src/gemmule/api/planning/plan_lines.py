"""Lines of a plan about launches beside the product's: copies of operands, other forms, and the precision in use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from gemmule.core.config import Config
from gemmule.core.dtype import DType, Precision
from gemmule.core.epilogue_inputs import num_b_of
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.product_forms import COPY, GATE, INPUT, is_read_in_place
from gemmule.core.quantities import duration, short_quantity
from gemmule.core.real_parts import PARTS
from gemmule.core.spec import Choice, KernelSpec, NextKernel


def _products(choice: Choice, problem: GemmProblem) -> list[tuple[NextKernel, GemmProblem]]:
    """Return the products of operands that the kernel prepares: one or more, the last of which writes the result."""
    then = choice.next_kernel(problem)
    return [
        (one, one.problem)
        for one in (then.chain() if then is not None else ())
        if isinstance(one.problem, GemmProblem) and one.spec.next_kernel is None
    ]


def copies_text(choice: Choice, problem: GemmProblem, predicted_us: float | None) -> str:
    """Return which operands are copied into a workspace first, with its bytes and the predicted time; or empty."""
    given, names = choice.product(problem)
    assert isinstance(given, GemmProblem)
    products = _products(choice, problem)
    before, copied = given.operands(), dict[str, dict[str, DType]](a={}, b={})
    for one, product in products:
        for factor, matrix in product.factors().items():
            name, place = "a" if factor == "a" else "b", one.operands.get(factor, "")
            if place not in one.workspaces:
                continue
            if not matrix.dtype.holds(before[name].dtype):
                # Parts of emulated numbers are no copies.
                return ""
            copied[name][place] = matrix.dtype
    texts, nbytes = [], 0
    for name, places in copied.items():
        for dtype in set(places.values()):
            as_type = f" as {dtype}" if dtype != before[name].dtype else ""
            texts.append(f"{'both ' * (len(places) > 1)}{names.get(name, name)}{as_type}")
        nbytes += sum(products[0][0].workspaces[place] for place in places)
    if not texts:
        return ""
    text = f"{' and '.join(texts)} first, into {short_quantity(nbytes, 'B')}"
    if predicted_us is None or (choice.form is not None and choice.form.kernels):
        # The rest of the time is that of other launches, too.
        return text
    rest, (_, outer, _) = predicted_us, split_batch(problem, choice.spec.batch_dims)
    for one, product in products:
        if one.spec.cost is None or not one.spec.cost_in_us:
            return text
        rest -= one.spec.cost(product, one.config, choice.gpu) * math.prod(outer)
    return f"{text}, {duration(rest / 1e6)} of the time" if rest > 0 else text


def rewrite_text(choice: Choice, problem: GemmProblem) -> str:
    """Return the form in which a product is computed; empty where it is computed as it is."""
    form = choice.form
    if form is None:
        gated = num_b_of(problem.epilogue) > 1
        return _gate_text([(one.spec, one.config) for one, _ in _products(choice, problem)[:-1]]) if gated else ""
    c = ""
    if problem.c is not None and not is_read_in_place(problem):
        same = problem.c.dtype == problem.d.dtype
        c = "c has another layout than the result" if same else f"c is {problem.c.dtype}, the result {problem.d.dtype}"
    if form.name == INPUT:
        return f"{c}; it is an input of the epilogue"
    by = _kernels_text(form.kernels)
    if form.name == PARTS:
        copied = f"; copies in row-major order by {by}" if by else ", in place"
        return f"one operand is real: the parts of the other make one real product{copied}"
    if form.name == COPY:
        return f"{c}; it is copied into the result first, by {by}"
    if form.name == GATE:
        return _gate_text(form.kernels)
    c = c or f"no kernel takes this {'result and epilogue' if problem.epilogue else 'result'} faster as it is"
    return f"{c}; the rest is computed from its accumulators in a workspace, by {by}"


def _gate_text(kernels: Iterable[tuple[KernelSpec, Config]]) -> str:
    """Return that products of a gated epilogue are computed first, by kernels; empty without one."""
    found = list(kernels)
    if not found:
        return ""
    what = "the second product is" if len(found) == 1 else "both products are"
    return f"no kernel takes this gated epilogue faster as it is; {what} computed first, by {_kernels_text(found)}"


def _kernels_text(kernels: Iterable[tuple[KernelSpec, Config]]) -> str:
    return " and ".join(f"{spec.name} [{config}]" for spec, config in kernels)


def precision_text(precision: Precision, executor: str, choice: Choice | None, problem: GemmProblem | None) -> str:
    """Return whether a product uses the precision that its caller allows; empty for IEEE."""
    if precision is Precision.IEEE:
        return ""
    name = repr(precision.value)
    if executor == "cpu" or choice is None or problem is None:
        return f"{name} is allowed, but unused: the host computes as with 'ieee'"
    exact, _ = choice.product(dataclasses.replace(problem, precision=Precision.IEEE))
    spec = choice.spec
    by_tf32 = any(product.precision is Precision.TF32 for _, product in _products(choice, problem))
    if not by_tf32 and any(spec.why_not(exact, arch, choice.config) is None for arch in spec.archs):
        # It would run without being allowed to.
        return f"{name} is allowed, but unused: this kernel computes as with 'ieee'"
    if precision is Precision.OZAKI:
        return f"{name} is used where its guard allows it, else the native kernel; plan.decision() says which"
    return f"{name} is used"
