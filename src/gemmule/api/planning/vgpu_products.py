"""Planning a product of host arrays on the virtual GPU, whose kernels see vgpu arrays: the memory itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemmule.core.chip import Chip
from gemmule.core.layout import StridedMatrix, element_alignment
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice, KernelSpec
from gemmule.runtime.arrays import ArrayView

from ..validation.product import ABSMAX, Product, host_array
from .choice import choose_virtual
from .decision import decided
from .device_products import problem_in_place
from .plan import Plan, planned


def plan_on_virtual_gpu(
    product: Product, reason: str, registry: Sequence[KernelSpec] | None = None, chip: Chip | None = None
) -> Plan:
    """Plan a product of host arrays whose kernels run on the CPU: those of a registry, all if there is none."""
    from gemmule.vgpu.arch import device_name

    views = {role: as_device_view(view) for role, view in product.operands.views.items()}
    problem, roles = problem_in_place(product, views)
    choice = choose_virtual(problem, registry, chip)

    def run() -> Any:
        from gemmule.vgpu.execute import run_kernel

        for role, view in views.items():
            copy_again(view, product.view(role))
        given, finish = product.new_output()
        out = views.get("out") or as_device_view(given)
        arrays = {name: host_array(views[role]) for name, role in roles.items()} | {"d": host_array(out)}
        if ABSMAX in views:
            arrays[ABSMAX] = host_array(views[ABSMAX])
            arrays[ABSMAX][...] = np.nan if choice.clears_absmax(problem) else 0
        run_kernel(problem, choice, arrays)
        copy_back(out, given)
        if ABSMAX in views:
            copy_back(views[ABSMAX], product.view(ABSMAX))
        return finish()

    def decide(inner: GemmProblem, guard: Choice, offsets: dict[str, int]) -> list[int]:
        from gemmule.kernels.emulation.decision import WORDS
        from gemmule.vgpu.execute import run_kernel

        words = np.zeros(WORDS, np.int32)
        matrices = {"a": inner.a, "b": inner.b}
        arrays = {
            name: part_of(host_array(views[roles[name]]), matrix, inner.batch, offsets[name])
            for name, matrix in matrices.items()
        }
        run_kernel(inner, guard, {**arrays, "d": words})
        return words.tolist()

    plan = planned(product, "vgpu", device_name(), choice, reason, problem, run)
    return dataclasses.replace(plan, guard=functools.partial(decided, problem, choice, decide))


def part_of(array: Array, matrix: StridedMatrix, batch: tuple[int, ...], offset: int) -> Array:
    """Return the matrices of a launch, which begin some elements into an array."""
    strides = [one * array.itemsize for one in (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)]
    first = np.lib.stride_tricks.as_strided(array, (offset + 1,), (array.itemsize,))[offset:]
    return np.lib.stride_tricks.as_strided(first, (*batch, matrix.rows, matrix.cols), strides)


Array = np.ndarray[Any, np.dtype[Any]]


def as_device_view(view: ArrayView) -> ArrayView:
    """Return a host array's memory with address and strides, as kernels see it.

    An array that kernels cannot read in place, of the other byte order or between elements, is copied.
    """
    assert view.host is not None
    from gemmule.vgpu.arrays import virtual_address

    host = view.host
    item = host.itemsize
    between = virtual_address(host) % element_alignment(item) or any(stride % item for stride in host.strides)
    if not host.dtype.isnative or between:
        host = np.array(host, host.dtype.newbyteorder("="), order="C")
    strides = tuple(stride // item for stride in host.strides)
    return dataclasses.replace(view, host=host, address=virtual_address(host), strides=strides)


def copy_again(seen: ArrayView, given: ArrayView) -> None:
    """Bring what the caller's array holds by now into what kernels see, where that is a copy."""
    assert given.host is not None
    assert seen.host is not None
    if seen.host is not given.host:
        seen.host[...] = given.host


def copy_back(seen: ArrayView, given: ArrayView) -> None:
    """Bring what a kernel wrote into the caller's array, where that was seen through a copy."""
    assert given.host is not None
    assert seen.host is not None
    if seen.host is not given.host:
        given.host[...] = seen.host
