"""What a plan says of a product."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from gemmule.core.dtype import Precision, numpy_dtype
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice

from .call_plan import Plan
from .checked import Product
from .operands import least_seconds


def planned(
    product: Product,
    executor: str,
    device: str,
    choice: Choice | None,
    reason: str,
    problem: GemmProblem | None,
    run: Callable[[], Any],
) -> Plan:
    """Return the plan of a product.

    Parameters
    ----------
    product : Product
        The product.
    executor, device, reason, problem, run
        As of `Plan`.
    choice : Choice or None
        Kernel and config, where one runs.
    """
    shape = product.shape
    factors = 2 if product.ending is not None and product.ending.expression.gated else 1
    on_host = product.operands.device is None
    result_bytes = math.prod(shape.result) * numpy_dtype(product.out_dtype).itemsize
    inputs = (view for role, view in product.operands.views.items() if role != "out")
    bytes_min = result_bytes + sum(math.prod(view.shape) * view.itemsize for view in inputs)
    then = choice.next_kernel(problem) if executor != "cpu" and choice and problem else None
    return Plan(
        operation=product.operation,
        executor=executor,
        device=device,
        kernel=choice.spec.name if executor != "cpu" and choice else "blas",
        config=choice.config.as_dict() if executor != "cpu" and choice else {},
        reason=reason,
        refused=choice.refused if choice else (),
        problem=problem,
        flop=2 * shape.m * shape.n * factors * shape.k * math.prod(shape.batch),
        bytes_min=problem.bytes_min if problem else bytes_min,
        bound_s=least_seconds(problem, device, from_host=on_host) if executor == "gpu" and problem else None,
        run=run,
        then=", ".join(dict.fromkeys(f"{one.spec.name} [{one.config}]" for one in then.chain())) if then else "",
        chosen_by=choice.chosen_by if executor != "cpu" and choice else "",
        chosen_from=choice.source if executor != "cpu" and choice else "",
        predicted_us=choice.predicted_us if executor == "gpu" and choice else None,
        epilogue=product.ending.text if product.ending is not None else "",
        precision=_precision_text(product.precision, executor, choice, problem),
        choice=choice,
    )


def _precision_text(precision: Precision, executor: str, choice: Choice | None, problem: GemmProblem | None) -> str:
    """Return whether a product uses the precision that its caller allows; empty for IEEE."""
    if precision is Precision.IEEE:
        return ""
    name = repr(precision.value)
    if executor == "cpu" or choice is None or problem is None:
        return f"{name} is allowed, but unused: the host computes as with 'ieee'"
    exact = dataclasses.replace(problem, precision=Precision.IEEE)
    spec = choice.spec
    if any(spec.why_not(exact, arch, choice.config) is None for arch in spec.archs):
        # It would run without being allowed to.
        return f"{name} is allowed, but unused: this kernel computes as with 'ieee'"
    return f"{name} is used"
