"""Planning a product: check the arrays, choose executor and kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .absolute_maximum import ROLE as ABSMAX
from .call_plan import Plan
from .checked import checked
from .epilogues import Ending, ending_of
from .executors import wanted_executor
from .gated import SECOND, storage_of, with_halves
from .named_kernel import only_kernel
from .on_device import plan_on_device
from .on_host import plan_on_host
from .operands import gather


def plan_product(
    operation: str,
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: Any = 1,
    beta: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    precision: Any = None,
    stream: Any = None,
    executor: str | None = None,
    bias: Any = None,
    epilogue: Any = None,
    epilogue_args: Mapping[str, Any] | None = None,
    gated: Any = None,
    absmax: Any = None,
    traced: tuple[Ending | None, Mapping[str, Any]] | None = None,
    kernel: str | None = None,
) -> Plan:
    """Check a product and say what would run. The parameters are those of `gemm` and `matmul`.

    `traced` is what `ending_of` has made of the epilogue already, and `kernel` as of `plan`.
    """
    executor = wanted_executor(executor)
    registry = only_kernel(kernel, "gemm", executor)
    storage = storage_of(epilogue, gated)
    ending, arrays = traced or ending_of(
        epilogue, bias, c, epilogue_args, gated=storage is not None, absmax=absmax is not None
    )
    inputs = dict(arrays)
    if absmax is not None:
        inputs[ABSMAX] = absmax
    if gated is not None and not isinstance(gated, str):
        inputs[SECOND] = gated
    operands = given = gather({"a": a, "b": b, "c": c, "out": out, **inputs}, stream)
    if storage is not None:
        operands = dataclasses.replace(given, views=with_halves(given.views, storage))
    product = checked(operation, operands, alpha, beta, out, out_dtype, precision, ending)
    on_device = product.operands.device is not None
    plan = plan_on_device(product, executor) if on_device else plan_on_host(product, executor, registry)
    return plan.refreshing(given.views.values(), given.work_stream)
