"""What a large product would take, without computing it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence

from gemmule.outofcore.budget import memory_limit
from gemmule.outofcore.device.budgets import Budgeted
from gemmule.outofcore.matrix import AnyDType, MatrixSource
from gemmule.outofcore.multiply import plan_multiply
from gemmule.outofcore.opening import result_target
from gemmule.outofcore.plan import StreamPlan
from gemmule.outofcore.result import output_dtype, result_dtype
from gemmule.outofcore.target import Target

from .streamed import Request, device_of, open_computer, open_inputs, open_sink, planned_part


@dataclasses.dataclass(frozen=True)
class DryRun:
    """A plan, and what would carry it out.

    Attributes
    ----------
    executor, device : str
        By name and in words.
    how : Budgeted or StreamPlan
        The plan: through a device, with what is predicted, or on the host.
    roomier : StreamPlan or None
        On the host, the plan within twice the memory.
    """

    executor: str
    device: str
    how: Budgeted | StreamPlan
    roomier: StreamPlan | None = None


def dry_run(request: Request) -> DryRun:
    """Plan a product as `open_product` would; nothing of it is computed or written.

    Of a large one through a GPU the disk is timed as it would be then: 384 MiB are written to a file without a name.

    Raises
    ------
    GemmuleError
        If the product could not be computed as it is wanted.
    OSError
        If a file cannot be read, or the folder of the result is not there.
    """
    limit = memory_limit(request.memory)
    wanted = None if request.out_dtype is None else output_dtype(request.out_dtype)
    with contextlib.ExitStack() as stack:
        a, b, c = stack.enter_context(open_inputs(request))
        inputs = {"a": a, "b": b} | ({} if c is None else {"c": c})
        sink = None if isinstance(request.out, (str, os.PathLike)) else open_sink(request, inputs)
        dtype = result_dtype(a.dtype, b.dtype, wanted or (sink.dtype if sink is not None else None))
        shape = a.shape[0], b.shape[1]
        place = sink or _free_target(request, shape, dtype, list(inputs.values()))
        device = device_of(request, a, b, c, dtype)
        if device is not None:
            part = planned_part(request, device, a, b, c, place, shape, dtype, limit)
            return DryRun(device, part.device, part.chosen)
        computer, room = stack.enter_context(open_computer(request, a, b, c, dtype, limit))
        plan, roomier = (
            plan_multiply(
                a, b, shape, dtype, computer, memory=memory, grain=place.grain, scratch=place.scratch_bytes,
                alpha=request.alpha, beta=request.beta, c=c, mirrored=True,
            )
            for memory in (room, 2 * room)
        )  # fmt: skip
        return DryRun(computer.name, computer.describe(), plan, roomier)


def _free_target(request: Request, shape: tuple[int, int], dtype: AnyDType, inputs: Sequence[MatrixSource]) -> Target:
    """Return the place of a result, refused in the words that the run would have; one that is there may stay."""
    target = result_target(request.out, shape, dtype, request.chunks, request.shards)
    target.check(True, inputs)
    return target
