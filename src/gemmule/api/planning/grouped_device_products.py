"""Planning a grouped product on a GPU, or on the virtual one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.core.chip import Chip
from gemmule.core.dtype import numpy_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import compact_strides
from gemmule.dispatch.choices.choice_cache import generation
from gemmule.runtime.arrays import ArrayView
from gemmule.runtime.device import Device, get_device
from gemmule.runtime.memory import clear

from ..validation.grouped_product import FACTORS_B, GroupedProduct
from ..validation.product import host_array
from .choice import check_device_arrays, choice_on, choice_on_chip, virtual_choice
from .device_products import problem_queue
from .named_chips import device_views, fields_for_chip
from .plan import Plan, kernel_fields
from .vgpu_products import as_device_view, copy_again, copy_back

#: Queues what gives a result, given its memory and a stream; returns other memory that it needs until it is done.
_Work = Callable[[ArrayView, int], ArrayView | None]


def planned_groups(product: GroupedProduct, run: Callable[[], Any], **fields: Any) -> Plan:
    """Return the plan of a grouped product; `fields` say where it runs and why, and which kernel if there is one."""
    views = product.operands.views
    result = math.prod(product.result) * numpy_dtype(product.out_dtype).itemsize
    bytes_min = result + sum(math.prod(x.shape) * x.itemsize for role, x in views.items() if role != "out")
    factors = 2 if product.ending is not None and product.ending.gated else 1
    flop = 2 * product.m * product.n * product.k * factors
    return Plan(operation="grouped_gemm", flop=flop, bytes_min=bytes_min, run=run, **fields)


def plan_groups_for_chip(product: GroupedProduct, chip: Chip) -> Plan:
    """Plan a grouped product on a chip, which need not be there; offsets are not checked, as on a GPU."""
    from gemmule.dispatch.grouped import choose_grouped

    if not product.multiplies:
        return planned_groups(product, **fields_for_chip(None, None, chip))
    product = product if product.k else product.of_zeros()
    problem = product.problem(device_views(product.views))
    choice = choice_on_chip(choose_grouped, problem, chip)
    return planned_groups(product, **fields_for_chip(choice, problem, chip))


def plan_groups_on_virtual_gpu(product: GroupedProduct, chip: Chip | None = None) -> Plan:
    """Plan a grouped product of host arrays on the virtual GPU; as on a chip, if one is named."""
    from gemmule.dispatch.grouped import choose_grouped
    from gemmule.vgpu.arch import device_name

    place = {"executor": "vgpu", "device": device_name(), "reason": "executor='vgpu' is set"}
    if not product.multiplies:

        def zero() -> Any:
            out, finish = product.new_output()
            host_array(out)[...] = 0
            return finish()

        return planned_groups(product, zero, kernel="memset", **place)
    product = product if product.k else product.of_zeros()
    given = product.views
    seen = {role: as_device_view(view) for role, view in given.items()}
    # The kernel reads numbers one behind another.
    numbers = seen[product.divider]
    seen[product.divider] = dataclasses.replace(numbers, host=np.ascontiguousarray(numbers.host), strides=(1,))
    # As for launches, of a problem only its batch and its operands are read.
    problem: Any = product.problem(seen)
    choice = virtual_choice(choose_grouped, problem, chip)

    def run() -> Any:
        from gemmule.vgpu.execute import run_kernel

        product.check_numbers(host_array(given[product.divider]))
        for role, view in seen.items():
            copy_again(view, given[role])
        target, finish = product.new_output()
        out = seen.get("out") or as_device_view(target)
        arrays = {name: host_array(seen[role]) for name, role in product.roles.items()}
        run_kernel(problem, choice, arrays | {"d": host_array(out)})
        copy_back(out, target)
        return finish()

    return planned_groups(product, run, **place, chosen_from=choice.source, **kernel_fields(choice, problem))


def plan_groups_on_device(product: GroupedProduct, executor: str | None) -> Plan:
    """Plan a grouped product of arrays that are on a GPU."""
    # Specs of kernels are loaded where one is chosen.
    from gemmule.dispatch.grouped import choose_grouped

    operands, reason = product.operands, check_device_arrays(executor)
    assert operands.device is not None
    device = get_device(operands.device)
    work: _Work = _zeroing(product, device)
    fields: dict[str, Any] = {"kernel": "memset"}
    if product.multiplies:
        multiplied = product if product.k else product.of_zeros()
        problem = multiplied.problem(multiplied.views)
        work = _multiplying(multiplied, problem, device, zeros=not product.k)
        fields = kernel_fields(choice_on(choose_grouped, problem, device), problem)
        if product.k:
            fields["places"] = {name: (role, product.views[role].address) for name, role in product.roles.items()}
        else:
            # A call that is found again would take the factors' addresses from its arrays.
            fields["problem"] = None

    def run() -> Any:
        stream = operands.work_stream()
        assert stream is not None
        out, finish = product.new_output(stream)
        operands.keep_until_done(stream, out, work(out, stream))
        return finish()

    return planned_groups(product, run, executor="gpu", device=device.name, reason=reason, **fields)


def grouped_queue(problem: Any, ordinal: int, began: int) -> Callable[[tuple[int, ...], int], None]:
    """Return a function that queues a `GroupedProblem`, given the addresses of its operands, D's last."""
    from gemmule.dispatch.grouped import choose_grouped

    return problem_queue(choose_grouped, problem, ordinal, began)


def _multiplying(product: GroupedProduct, problem: Any, device: Device, *, zeros: bool) -> _Work:
    """Return a function that queues the kernel, and returns zeros that all factors share where there are no others."""

    def work(out: ArrayView, stream: int) -> ArrayView | None:
        memory, shape = None, (max(product.m, product.groups * product.n), product.k)
        if zeros:
            memory = product.operands.new(shape, product.views["a"].dtype_name, stream).view
            clear(memory.address, math.prod(shape) * memory.itemsize, device.ordinal, stream)
        views = {role: memory for role in ("a", *FACTORS_B) if memory is not None}
        addresses = [(views.get(role) or product.views[role]).address for role in product.roles.values()]
        grouped_queue(problem, device.ordinal, generation())((*addresses, out.address), stream)
        return memory

    return work


def _zeroing(product: GroupedProduct, device: Device) -> _Work:
    """Return a function that zeroes the result of a product without elements, or without anything to add up."""

    def work(out: ArrayView, stream: int) -> None:
        if 0 not in product.result:
            if out.strides != compact_strides(product.result):
                raise ArgumentError("out is not contiguous, and there is nothing to multiply; pass a contiguous out")
            clear(out.address, math.prod(product.result) * out.itemsize, device.ordinal, stream)

    return work
