"""Lines of a plan about launches beside the product's: copies of operands, other forms, and the precision in use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from gemmule.core.config import Config
from gemmule.core.dtype import DType, Precision
from gemmule.core.epilogue_inputs import num_b_of
from gemmule.core.k_parts import KParts
from gemmule.core.merged_batch import MergedBatch
from gemmule.core.problem import GemmProblem, Problem, inner_problem, split_batch
from gemmule.core.product_forms import COPY, GATE, INPUT, is_read_in_place
from gemmule.core.quantities import duration, short_quantity
from gemmule.core.real_parts import PARTS
from gemmule.core.spec import Choice, KernelSpec, NextKernel

from ..validation.operands import least_seconds


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
    inner, outer, _ = split_batch(problem, choice.batch_dims)
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
            texts.append(f"{names.get(name, name) if len(places) == 1 else 'both right operands'}{as_type}")
        nbytes += sum(products[0][0].workspaces[place] for place in places)
    last = ""
    if choice.form is not None and choice.form.name == PARTS:
        own, last = _copies_of_parts(choice, inner)
        texts += own
        nbytes += sum(choice.form.workspaces(inner).values())
    if not texts and not last:
        return ""
    *others, final = texts or [""]
    first = [f"{', '.join(others)}{' and ' * bool(others)}{final} first"] if texts else []
    text = ", ".join([*first, *([last] if last else [])])
    text += f", into {short_quantity(nbytes, 'B')}" if nbytes else ""
    if predicted_us is None or (choice.form is not None and choice.form.kernels and choice.form.name != PARTS):
        # The rest of the time is that of other launches, too.
        return text
    rest = predicted_us
    timed: list[tuple[KernelSpec, Config, Problem]] = [(one.spec, one.config, its) for one, its in products]
    for spec, config, its in timed or [(choice.spec, choice.config, choice.product(inner)[0])]:
        if spec.cost is None or not spec.cost_in_us:
            return text
        rest -= spec.cost(its, config, choice.gpu) * math.prod(outer)
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
    by, inner = _kernels_text(form.kernels), inner_problem(problem, choice.batch_dims)
    if form.name == PARTS:
        copied = "".join(f"; {text} by {kernel}" for text, kernel in _steps_of_parts(choice, inner))
        return f"one operand is real: the parts of the other make one real product{copied or ', in place'}"
    if isinstance(form, KParts):
        return _parts_of_k_text(form, inner)
    if isinstance(form, MergedBatch):
        names = ["the result" if name == "d" else name for name in form.product(problem)[1]]
        return f"dimensions of the batch are merged, with copies of {' and '.join(names)} by {by}"
    if form.name == COPY:
        return f"{c}; it is copied into the result first, by {by}"
    if form.name == GATE:
        return _gate_text(form.kernels)
    if num_b_of(problem.epilogue) > 1:
        *products, ending = form.kernels
        rest = f"the epilogue from the sums of both in workspaces, by {_kernels_text([ending])}"
        return f"{_gate_text(products, c)}, and {rest}"
    c = c or f"no kernel takes this {'result and epilogue' if problem.epilogue else 'result'} faster as it is"
    return f"{c}; the result is computed from accumulators in a workspace, by {by}"


def _parts_of_k_text(form: KParts, inner: GemmProblem) -> str:
    """Return the parts of K, and what is launched after them."""
    has_rest = "a" in form.steps(inner)[0].operands
    rest = f", and a rest by {_kernels_text(form.kernels[:1])}" if has_rest else ""
    added = _kernels_text(form.kernels[has_rest:])
    return f"k is divided into {form.parts} parts, a batch of products{rest}; their results are added by {added}"


def _steps_of_parts(choice: Choice, inner: GemmProblem) -> list[tuple[str, str]]:
    """Return what each launch beside a product of parts does, and its kernel."""
    assert choice.form is not None
    found = []
    for one, (spec, config) in zip(choice.form.steps(inner), choice.form.kernels, strict=True):
        step = one.by(spec)
        matrices = step.problem.operands()
        source = next(name for name in ("a", "c") if name in step.operands)
        whose = step.operands[source]
        # Only products convert.
        into = matrices["d"].dtype if source == "c" and matrices["c"].dtype != matrices["d"].dtype else None
        if one.is_last:
            text = f"the result is {f'converted to {into}' if into else 'copied from row-major order'}"
        elif whose == "c":
            text = f"c is {f'converted to {into} and ' if into else ''}copied into the result first,"
        else:
            conjugate = "the conjugate of " if matrices[source].conj else ""
            text = f"{conjugate}{whose} is copied in row-major order"
        found.append((text, _kernels_text([(spec, config)])))
    return found


def _copies_of_parts(choice: Choice, inner: GemmProblem) -> tuple[list[str], str]:
    """Return what is copied before a product of parts, and the result, or nothing, after it."""
    assert choice.form is not None
    steps = choice.form.steps(inner)
    before = [next(iter(step.operands.values())) for step in steps if not step.is_last]
    texts = [name if name == "c" else f"{name} in row-major order" for name in before]
    return texts, "the result last" if any(step.is_last for step in steps) else ""


def _gate_text(kernels: Iterable[tuple[KernelSpec, Config]], why: str = "") -> str:
    """Return that products of a gated epilogue are computed first, by kernels; empty without one."""
    found = list(kernels)
    if not found:
        return ""
    what = "the second product is" if len(found) == 1 else "both products are"
    why = why or "no kernel takes this gated epilogue faster as it is"
    return f"{why}; {what} computed first, by {_kernels_text(found)}"


def _kernels_text(kernels: Iterable[tuple[KernelSpec, Config]]) -> str:
    """Return kernels with their configs; one that is launched again is named once."""
    return " and ".join(dict.fromkeys(f"{spec.name} [{config}]" for spec, config in kernels))


def arithmetic_of(choice: Choice, problem: GemmProblem) -> Precision:
    """Return the precision of the chosen kernel's arithmetic: IEEE where it does not use the one that is allowed."""
    if problem.precision is Precision.IEEE:
        return Precision.IEEE
    exact, _ = choice.product(dataclasses.replace(problem, precision=Precision.IEEE))
    spec = choice.spec
    by_tf32 = any(product.precision is Precision.TF32 for _, product in _products(choice, problem))
    # A kernel that takes the IEEE product too would run without being allowed to.
    unused = not by_tf32 and any(spec.why_not(exact, arch, choice.config) is None for arch in spec.archs)
    return Precision.IEEE if unused else problem.precision


def bound_of(choice: Choice | None, problem: Problem, device: str, *, from_host: bool) -> float | None:
    """Return the least seconds on a GPU of that name, in the arithmetic of the chosen kernel."""
    if choice is not None and isinstance(problem, GemmProblem):
        problem = dataclasses.replace(problem, precision=arithmetic_of(choice, problem))
    return least_seconds(problem, device, from_host=from_host)


def precision_text(precision: Precision, executor: str, choice: Choice | None, problem: GemmProblem | None) -> str:
    """Return whether a product uses the precision that its caller allows; empty for IEEE."""
    if precision is Precision.IEEE:
        return ""
    name = repr(precision.value)
    if executor == "cpu" or choice is None or problem is None:
        return f"{name} is allowed, but unused: the host computes as with 'ieee'"
    if arithmetic_of(choice, problem) is Precision.IEEE:
        return f"{name} is allowed, but unused: this kernel computes as with 'ieee'"
    if precision is Precision.OZAKI:
        return f"{name} is used where its guard allows it, else the native kernel; plan.decision() says which"
    return f"{name} is used"
