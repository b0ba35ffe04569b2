"""Planning grouped products: choose the executor; of host arrays, multiply one group after another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from gemmule.core.block_scales import SCALES
from gemmule.core.errors import ArgumentError

from ..validation.grouped_product import GroupedArguments, GroupedProduct, checked
from ..validation.product import ProductArguments, host_array
from .choice import only_on_host
from .grouped_device_products import (
    plan_groups_for_chip,
    plan_groups_on_device,
    plan_groups_on_virtual_gpu,
    planned_groups,
)
from .named_chips import target_of
from .plan import Plan
from .products import memory_for_sums, plan_product


def plan_groups(call: GroupedArguments, chip: str | None = None) -> Plan:
    """Check a grouped product and say what would run; `chip` as of ``matmul.plan``.

    Raises
    ------
    ShapeError, DTypeError, OverlapError, ArgumentError, UnsupportedError
        As of `grouped_gemm`.
    """
    if call.matrices is not None:
        if given := [name for name in ("offsets", "bias", "scale_a", "scale_b") if getattr(call, name) is not None]:
            raise ArgumentError(f"matrices and {' and '.join(given)} are given; with matrices leave out the others")
    elif call.offsets is None:
        return _plan_batch(call, chip)
    elif isinstance(call.offsets, list | tuple):
        # An array of them would be one of int64 by default.
        raise ArgumentError(
            f"offsets is of type {type(call.offsets).__name__}; give the groups' ends as an array of int32, such as "
            "numpy.asarray(offsets, numpy.int32)"
        )
    target = target_of(call.executor, chip)
    product = checked(call, specs=target.elsewhere is not None)
    if target.elsewhere is not None:
        return plan_groups_for_chip(product, target.elsewhere)
    if product.operands.device is not None:
        plan = plan_groups_on_device(product, target.executor)
    else:
        product.check_numbers(host_array(product.operands.views[product.divider]))
        if target.executor == "vgpu":
            plan = plan_groups_on_virtual_gpu(product, target.chip)
        else:
            plan = _plan_on_host(product, target.executor)
    return plan.with_refresh(product.operands.views.values(), product.operands.work_stream)


def _plan_batch(call: GroupedArguments, chip: str | None) -> Plan:
    """Plan a product without offsets: a batch."""
    if any(x is not None for x in (call.bias, call.epilogue, call.epilogue_args, call.scale_a, call.scale_b)):
        raise ArgumentError("a bias, an epilogue or scales need offsets; use gemm for a batch of products")
    a, b = call.shapes
    if (len(a), len(b)) != (3, 3):
        raise ArgumentError(
            f"a has shape {a} and b {b}, and offsets is None; pass the groups' ends, or a and b of three dimensions"
        )
    return plan_product(
        ProductArguments(
            "matmul", call.a, call.b, out=call.out, out_dtype=call.out_dtype, precision=call.precision,
            stream=call.stream, executor=call.executor, beta=0,
        ),
        chip=chip,
    )  # fmt: skip


def _plan_on_host(product: GroupedProduct, executor: str | None) -> Plan:
    if executor == "gpu":
        raise only_on_host("grouped products of host arrays run")
    arrays = {role: host_array(view) for role, view in product.operands.views.items() if role != "out"}
    a, b, numbers = arrays["a"], arrays["b"], arrays[product.divider]

    def run() -> Any:
        from gemmule.host.gemm import gemm

        product.check_numbers(numbers)
        view, finish = product.new_output()
        target, end = host_array(view), 0
        with memory_for_sums(product.result, streamable=False):
            for group, part in _parts(product.axis, numbers):
                end = part.stop
                if product.axis == "n":
                    gemm(a[group], b[:, part], target[:, part])
                elif product.axis == "k":
                    gemm(a[:, part], b[part], target[group])
                elif product.ending is None:
                    gemm(a[part], b[group], target[part])
                else:
                    plan_product(_of_group(product, arrays, (group, part), target)).execute()
            if product.axis != "k":
                target[(slice(end, None),) if product.axis != "n" else (slice(None), slice(end, None))] = 0
        return finish()

    from gemmule.host import blas

    reason = "executor='cpu' is set" if executor == "cpu" else "the arrays are in host memory"
    return planned_groups(product, run, executor="cpu", device=blas.describe(), kernel="blas", reason=reason)


def _parts(axis: str, numbers: Any) -> Iterator[tuple[int, slice]]:
    """Yield the number of each matrix, and the rows, columns or part of K that are multiplied with it."""
    if axis == "row":
        yield from ((number, slice(row, row + 1)) for row, number in enumerate(numbers.tolist()))
    else:
        yield from enumerate(itertools.starmap(slice, itertools.pairwise((0, *numbers.tolist()))))


def _of_group(product: GroupedProduct, arrays: Any, place: tuple[int, slice], target: Any) -> ProductArguments:
    """Return the product of a group of rows with an epilogue."""
    group, part = place
    given = product.epilogue_args
    if SCALES[0] in product.views:
        pairs = zip(SCALES, (part, group), strict=True)
        given = {role: arrays[role].reshape(1, 1) if arrays[role].size == 1 else arrays[role][at] for role, at in pairs}
    return ProductArguments(
        "gemm", arrays["a"][part], arrays["b"][group], out=target[part], executor="cpu", epilogue=product.epilogue,
        epilogue_args=given, bias=arrays["bias"][group] if "bias" in arrays else None,
    )  # fmt: skip
