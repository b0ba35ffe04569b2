"""Runs a plan's operations on a model of the device: four streams, two links, one processor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container

from .buffers import FIRST
from .operation import C_OUT, LANES, MIRRORING, STREAMS, Convert, Load, Mirror, Multiply, Op, Reflect, Store
from .plan import DevicePlan
from .rates import Rates
from .schedule import operations

#: Bytes a second at which a device rounds sums into results, or transposes them, reading and writing.
CONVERT_RATE = 1e12


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a plan is expected to take.

    Attributes
    ----------
    seconds : float
        From the first byte that moves to the last.
    compute_s, h2d_s, d2h_s, source_s, sink_s : float
        How long each of them works: the processor, the links, and what brings operands to pinned memory and takes
        results from it.
    bytes_in, bytes_out : int
        What crosses the links.
    flop : int
        Operations that are computed.
    """

    seconds: float
    compute_s: float
    h2d_s: float
    d2h_s: float
    source_s: float
    sink_s: float
    bytes_in: int
    bytes_out: int
    flop: int
    files: bool = False

    @property
    def exposed_share(self) -> float:
        """Share of the time in which nothing is computed, because something is waited for."""
        return 1 - self.compute_s / self.seconds if self.seconds else 0.0

    @property
    def works(self) -> dict[str, float]:
        """How long each part works, by name."""
        read, written = ("disk read", "disk write") if self.files else ("host reads", "host writes")
        return {
            "compute": self.compute_s,
            "H2D": self.h2d_s,
            "D2H": self.d2h_s,
            read: self.source_s,
            written: self.sink_s,
        }

    @property
    def bottleneck(self) -> str:
        """The part that works longest."""
        return max(self.works, key=lambda name: self.works[name])

    @property
    def best_s(self) -> float:
        """Time if the bottleneck never waited."""
        return max(self.works.values())


@dataclasses.dataclass(frozen=True)
class Ran:
    """When an operation ran, in seconds from the start."""

    op: Op
    start: float
    end: float


def simulate(plan: DevicePlan, rates: Rates, done: Container[tuple[int, int]] = ()) -> tuple[Prediction, list[Ran]]:
    """Return what a plan takes at those rates, and when each operation runs.

    The two streams towards the device share a link, on which copies take turns; where a disk gives and takes, all do.
    Operations of a stream follow each other; each begins when those that it waits for are over, and when it is queued.
    Streams that compute take turns at the processor. Tiles that are `done` are left out.
    """
    free = dict.fromkeys((*STREAMS, *LANES, MIRRORING), 0.0)
    processor = 0.0
    allocated = {(name, 0) for name in FIRST if plan.buffers[name][0]}
    queued = sum(plan.buffers[name][1] for name, _ in allocated) * rates.allocate
    link = {"h2d": 0.0, "d2h": 0.0}
    # What is asked for again is the end of an operation that others wait for; few are kept long.
    ends: dict[int, float] = {}
    ran: list[Ran] = []
    compute = 0.0
    moved = {"h2d": 0, "d2h": 0}
    flop = 0
    for op in operations(plan, done):
        # The host allocates a buffer when an operation is the first to fill it, and queues one after another.
        if (filled := _filled(plan, op)) not in allocated:
            allocated.add(filled)
            queued += plan.buffers[filled[0]][1] * rates.allocate if filled[0] in plan.buffers else 0.0
        start = max([free[op.stream], queued, *(ends[number] for number in op.after)])
        queued += rates.issue
        if isinstance(op, Multiply):
            duration = rates.launch + rates.seconds(
                *op.shape, added=plan.grid[2] > 1, lanes=plan.lanes, needed=op.needed
            )
            compute += duration
            flop += op.flop
        elif isinstance(op, Convert):
            size = _area(op) * (plan.sum_dtype.itemsize + plan.product.out.itemsize)
            duration = rates.launch + size / CONVERT_RATE
            compute += duration
        elif isinstance(op, Mirror | Reflect):
            duration = rates.launch + 2 * _area(op) * plan.product.out.itemsize / CONVERT_RATE
            compute += duration
        else:
            assert isinstance(op, Load | Store)
            direction, over = ("d2h", rates.departing) if op.stream == C_OUT else ("h2d", rates.arriving)
            ways = ("h2d", "d2h") if rates.one_disk else (direction,)
            start = max(start, *(link[way] for way in ways), 0.0)
            duration = rates.launch + over(op.nbytes, _line(plan, op))
            link.update(dict.fromkeys(ways, start + duration))
            moved[direction] += op.nbytes
        if op.stream in (*LANES, MIRRORING):
            start = max(start, processor)
            processor = start + duration
        end = start + duration
        free[op.stream] = ends[op.number] = end
        ran.append(Ran(op, start, end))
    return (
        Prediction(
            seconds=max(free.values()),
            compute_s=compute,
            h2d_s=moved["h2d"] / rates.h2d,
            d2h_s=moved["d2h"] / rates.d2h,
            source_s=moved["h2d"] / rates.source,
            sink_s=moved["d2h"] / rates.sink,
            bytes_in=moved["h2d"],
            bytes_out=moved["d2h"],
            flop=flop,
            files=rates.files,
        ),
        ran,
    )


def _line(plan: DevicePlan, op: Load | Store) -> float:
    """Return the bytes of the lines that a piece has in host memory; infinite where they join."""
    product = plan.product
    name = op.operand if isinstance(op, Load) else "out"
    operand, extents = {
        "a": (product.a, (product.m, product.k)),
        "b": (product.b, (product.k, product.n)),
        "c": (product.c or product.out, (product.m, product.n)),
        "out": (product.out, (product.m, product.n)),
    }[name]
    part, extent = (op.cols, extents[1]) if operand.order == "C" else (op.rows, extents[0])
    length = part[1] - part[0]
    return math.inf if length >= extent else float(length * operand.itemsize)


def _filled(plan: DevicePlan, op: Op) -> tuple[str, int]:
    """Return the buffer that an operation writes to; a store writes to none."""
    if isinstance(op, Load):
        return op.operand if op.operand in plan.buffers else "sum", op.slot
    if isinstance(op, Multiply):
        return "sum", op.target
    if isinstance(op, Convert):
        return "out", op.target
    return ("mirror", op.target) if isinstance(op, Mirror) else ("", 0)


def _area(op: Convert | Mirror | Reflect) -> int:
    return (op.rows[1] - op.rows[0]) * (op.cols[1] - op.cols[0])
