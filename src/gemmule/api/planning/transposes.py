"""Planning a transpose: check the array, choose executor and kernel."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from gemmule.core.chip import Chip
from gemmule.core.errors import ArgumentError, DTypeError, OverlapError, ShapeError, UnsupportedError, shown
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice, KernelSpec
from gemmule.runtime.arrays import ArrayView, check_output
from gemmule.runtime.arrays.overlap import same_memory
from gemmule.runtime.device import get_device

from ..validation.operands import Operands, gather, least_seconds
from .choice import (
    check_device_arrays,
    choose_compiling,
    choose_for_chip,
    choose_virtual,
    execute,
    only_kernel,
    only_on_host,
)
from .named_chips import Refusal, Target, device_views, predictions, target_of
from .plan import Execution, Plan, kernel_fields
from .vgpu_products import as_device_view, copy_again, copy_back

# Alignment of new arrays, of any library, and the largest that makes a difference to a kernel.
_ALIGNMENT = 16

#: Gives the axes of a transpose for a number of dimensions.
Order = Callable[[int], tuple[int, ...]]


def plan_transpose(
    x: Any,
    order_of: Order,
    *,
    out: Any = None,
    stream: Any = None,
    executor: str | None = None,
    kernel: str | None = None,
    chip: str | None = None,
) -> Plan:
    """Check a transpose and say what would run; the other parameters are those of `transpose` and of `plan`."""
    target = target_of(executor, chip)
    registry = only_kernel(kernel, "transpose", named=target.names_kernels)
    operands = gather({"x": x, "out": out}, stream, specs=target.elsewhere is not None)
    plan = _planned(operands, order_of, out, executor, target, registry)
    return plan.with_refresh(operands.views.values(), operands.work_stream)


def _planned(
    operands: Operands, order_of: Order, out: Any, executor: str | None, wanted: Target,
    registry: Sequence[KernelSpec] | None,
) -> Plan:  # fmt: skip
    source = operands.views["x"]
    order = order_of(len(source.shape))
    shape = tuple(source.shape[axis] for axis in order)
    if out is not None:
        target = operands.views["out"]
        if target.shape != shape:
            raise ShapeError(f"out has shape {target.shape}, the transpose has {shape}; they must be equal")
        if target.dtype_name != source.dtype_name:
            types = f"out is {target.dtype_name} and x is {source.dtype_name}"
            raise DTypeError(f"{types}; a transpose keeps the dtype; give out that dtype")
        check_output(target, {"x": source}, may_be_same=("x",))

    def new_output(stream: int | None = None) -> tuple[ArrayView, Any]:
        if out is not None:
            return operands.views["out"], lambda: out
        new = operands.new(shape, source.dtype_name, stream)
        return new.view, new.finish

    if wanted.elsewhere is not None:
        return _plan_for_chip(device_views(operands.views), order, registry, wanted.elsewhere)
    if source.host is not None and wanted.executor == "vgpu":
        return _plan_virtual(source, order, operands.views.get("out"), new_output, registry, wanted.chip)
    if source.host is not None and executor == "gpu":
        raise only_on_host("host arrays are transposed")
    if source.host is not None:
        host_source = source.host

        def run_on_host() -> Any:
            from gemmule.host.transpose import transpose

            view, finish = new_output()
            assert view.host is not None
            in_place = out is not None and same_memory(source, operands.views["out"])
            transpose(host_source.copy() if in_place else host_source, order, view.host)
            return finish()

        reason, bytes_min = "the array is in host memory", 2 * math.prod(shape) * source.itemsize
        return Plan("transpose", "cpu", "NumPy", "numpy", reason, flop=0, bytes_min=bytes_min, run=run_on_host)

    if executor is not None or wanted.executor == "vgpu":
        check_device_arrays(wanted.executor)
    assert operands.device is not None
    ordinal = operands.device
    device = get_device(ordinal)
    problem, choice = _chosen(
        source, order, operands.views.get("out"), lambda problem: choose_compiling(problem, device)
    )

    # A cached call reads it as A and as B.
    pointers, execution = {"a": source.address, "once more": source.address}, Execution()

    def run() -> Any:
        stream = operands.work_stream()
        assert stream is not None
        view, finish = new_output(stream)
        execute(problem, choice, device, pointers | {"d": view.address}, stream, execution)
        operands.keep_until_done(stream, view)
        return finish()

    return Plan(
        operation="transpose",
        executor="gpu",
        device=device.name,
        reason="the array is on this GPU",
        refusals=choice.refusals,
        flop=0,
        bytes_min=problem.bytes_min,
        bound_s=least_seconds(problem, device.name, from_host=False),
        run=run,
        execution=execution,
        **_chosen_fields(choice, problem),
    )


def _chosen_fields(choice: Choice, problem: TransposeProblem) -> dict[str, Any]:
    """Return the fields of a plan that say which kernel runs; predicted times are of an H200's memory."""
    fields = kernel_fields(choice, problem)
    return fields if choice.gpu.memory == H200_RATES.memory else fields | {"predicted_us": None}


def _chosen(
    source: ArrayView,
    order: tuple[int, ...],
    target: ArrayView | None,
    pick: Callable[[TransposeProblem], Choice],
) -> tuple[TransposeProblem, Choice]:
    """Return the transpose of device memory as a problem, and the kernel for it."""
    shape = tuple(source.shape[axis] for axis in order)
    source_strides = tuple(source.strides[axis] for axis in order)
    target_strides = compact_strides(shape) if target is None else target.strides
    alignments = tuple(_ALIGNMENT if view is None else min(view.alignment, _ALIGNMENT) for view in (source, target))
    moves = any(n > 1 and s != t for n, s, t in zip(shape, source_strides, target_strides, strict=True))
    same = target is not None and same_memory(source, target)
    in_place = same and moves
    if same and not moves:
        # Every element is where it belongs: nothing is launched.
        shape = (0,) * len(shape)
    problem = transpose_problem(
        shape, source_strides, target_strides, source.itemsize, (alignments[0], alignments[1]), in_place=in_place
    )
    try:
        return problem, pick(problem)
    except UnsupportedError as error:
        if not in_place:
            raise
        raise OverlapError(
            f"out is x itself, whose axes cannot be permuted in place ({error}); pass another array as out"
        ) from error


def _plan_for_chip(
    views: Mapping[str, ArrayView],
    order: tuple[int, ...],
    registry: Sequence[KernelSpec] | None,
    chip: Chip,
) -> Plan:
    problem, choice = _chosen(
        views["x"], order, views.get("out"), lambda problem: choose_for_chip(problem, chip, registry)
    )
    refuse = Refusal(chip)
    plan = Plan(
        operation="transpose",
        executor="gpu",
        device=chip.name,
        reason=refuse.reason,
        refusals=choice.refusals,
        flop=0,
        bytes_min=problem.bytes_min,
        run=refuse,
        **_chosen_fields(choice, problem),
    )
    return dataclasses.replace(plan, **predictions(problem, choice, chip))


def _plan_virtual(
    source: ArrayView,
    order: tuple[int, ...],
    out: ArrayView | None,
    new_output: Callable[[], tuple[ArrayView, Any]],
    registry: Sequence[KernelSpec] | None,
    chip: Chip | None,
) -> Plan:
    from gemmule.vgpu.arch import device_name

    seen = as_device_view(source)
    target = as_device_view(out) if out is not None else None
    problem, choice = _chosen(seen, order, target, lambda problem: choose_virtual(problem, registry, chip))

    def run() -> Any:
        from gemmule.vgpu.execute import run_kernel

        copy_again(seen, source)
        given, finish = new_output()
        result = target if target is not None else as_device_view(given)
        assert seen.host is not None
        assert result.host is not None
        run_kernel(problem, choice, {"a": seen.host, "d": result.host})
        copy_back(result, given)
        return finish()

    return Plan(
        operation="transpose",
        executor="vgpu",
        device=device_name(),
        kernel=choice.spec.name,
        config=choice.config.as_dict(),
        reason="executor='vgpu' is set",
        refusals=choice.refusals,
        problem=problem,
        flop=0,
        bytes_min=problem.bytes_min,
        run=run,
    )


def last_two_exchanged(ndim: int) -> tuple[int, ...]:
    """Return the axes that exchange the last two dimensions.

    Raises
    ------
    ShapeError
        If there are fewer than two.
    """
    if ndim < 2:
        raise ShapeError(f"x has {_dimensions(ndim)}; a stack of matrices has at least 2; reshape it first")
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def axes_as_given(axes: Sequence[int] | None) -> Order:
    """Return the order that the caller names; None reverses all axes.

    Raises
    ------
    ArgumentError
        When it is applied, if `axes` does not name each dimension once.
    """

    def order(ndim: int) -> tuple[int, ...]:
        if axes is None:
            return tuple(reversed(range(ndim)))
        if isinstance(axes, Set | Mapping):
            raise ArgumentError(f"axes={shown(axes)} has no order; give a tuple or a list")
        try:
            wanted = [operator.index(axis) for axis in axes]
        except (TypeError, NotImplementedError):
            # The latter of a memoryview of several dimensions.
            raise ArgumentError(
                f"axes={shown(axes)} must be a sequence of integers, one for each dimension of x"
            ) from None
        found = tuple(axis + ndim if axis < 0 else axis for axis in wanted)
        if sorted(found) != list(range(ndim)):
            raise ArgumentError(
                f"axes={shown(axes)} is not a permutation of the {_dimensions(ndim)} of x; name each once"
            )
        return found

    return order


def _dimensions(ndim: int) -> str:
    return "1 dimension" if ndim == 1 else f"{ndim} dimensions"
