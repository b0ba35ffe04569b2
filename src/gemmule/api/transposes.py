"""Planning a transpose: check the array, choose executor and kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError
from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem
from gemmule.dispatch.select import choose
from gemmule.runtime.arrays import ArrayView, check_output
from gemmule.runtime.device import get_device

from .operands import gather, least_seconds
from .plan import Plan


def plan_transpose(x: Any, axes: Sequence[int] | None = None, *, out: Any = None, stream: Any = None) -> Plan:
    """Check a transpose and say what would run. The parameters are those of `transpose`."""
    operands = gather({"x": x, "out": out}, stream)
    source = operands.views["x"]
    order = _permutation(axes, len(source.shape))
    shape = tuple(source.shape[axis] for axis in order)
    if out is not None:
        target = operands.views["out"]
        if target.shape != shape:
            raise ShapeError(f"out has shape {target.shape}, the transpose has {shape}; they must be equal")
        if target.dtype_name != source.dtype_name:
            raise DTypeError(f"out is {target.dtype_name}, x is {source.dtype_name}; a transpose keeps the dtype")
        check_output(target, {"x": source})
    bytes_min = 2 * math.prod(shape) * source.itemsize

    def new_output() -> tuple[ArrayView, Any]:
        if out is not None:
            return operands.views["out"], lambda: out
        new = operands.library.empty(shape, source.dtype_name, operands.like, operands.stream)
        return new.view, new.finish

    if source.host is not None:
        host_source = source.host

        def run_on_host() -> Any:
            from gemmule.host.transpose import transpose

            view, finish = new_output()
            assert view.host is not None
            transpose(host_source, order, view.host)
            return finish()

        return Plan(
            "transpose",
            "host",
            "NumPy",
            "numpy",
            {},
            "the array is in host memory",
            (),
            None,
            0,
            bytes_min,
            None,
            run_on_host,
        )

    assert operands.device is not None
    assert operands.stream is not None
    ordinal, stream_number = operands.device, operands.stream
    device = get_device(ordinal)
    target_strides = operands.views["out"].strides if out is not None else compact_strides(shape)
    source_strides = tuple(source.strides[axis] for axis in order)
    problem = transpose_problem(shape, source_strides, target_strides, source.itemsize)
    choice = choose(problem, device.arch)

    def run() -> Any:
        from gemmule.runtime.execute import run_kernel

        view, finish = new_output()
        run_kernel(problem, choice, {"a": source.address, "d": view.address}, ordinal, stream_number)
        operands.keep_until_done(view)
        return finish()

    return Plan(
        operation="transpose",
        executor="gpu",
        device=device.name,
        kernel=choice.spec.name,
        config=choice.config.as_dict(),
        reason="the array is on this GPU",
        refused=choice.refused,
        problem=problem,
        flop=0,
        bytes_min=bytes_min,
        bound_s=least_seconds(problem, device.name, from_host=False),
        run=run,
    )


def matrix_axes(ndim: int) -> tuple[int, ...]:
    """Return the axes that exchange the last two dimensions.

    Raises
    ------
    ShapeError
        If there are fewer than two.
    """
    if ndim < 2:
        raise ShapeError(f"x has {ndim} dimensions; a stack of matrices has at least 2; reshape it first")
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def _permutation(axes: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(reversed(range(ndim)))
    wanted = tuple(axes)
    order = tuple(axis + ndim if axis < 0 else axis for axis in wanted)
    if sorted(order) != list(range(ndim)):
        raise ArgumentError(f"axes={wanted} is not a permutation of the {ndim} dimensions of x; name each once")
    return order
