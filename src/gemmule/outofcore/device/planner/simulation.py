"""Runs a plan's operations on a model of the device: four streams, two links, one processor."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable

from gemmule.core.dataclass import dataclass

from ..engine.buffers import FIRST
from .operation import C_OUT, LANES, MIRRORING, STREAMS, Convert, Load, Mirror, Multiply, Op, Reflect, Store
from .plan import DevicePlan
from .rates import Rates
from .schedule import operations

#: Bytes a second at which a device rounds sums into results, or transposes them, reading and writing.
CONVERT_RATE = 1e12


@dataclass(frozen=True)
class Prediction:
    """The expected times and traffic of a plan."""

    seconds: float  #: From the first byte that moves to the last.
    #: compute_s, h2d_s, d2h_s, source_s, sink_s: How long each of them works: the processor, the links, and what brings
    #: operands to pinned memory and takes results from it.
    compute_s: float
    h2d_s: float
    d2h_s: float
    source_s: float
    sink_s: float
    #: bytes_in, bytes_out: What crosses the links.
    bytes_in: int
    bytes_out: int
    flop: int  #: Operations that are computed.
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


def simulated(plan: DevicePlan, rates: Rates, done: Container[tuple[int, int]] = ()) -> Prediction:
    """Return the predicted time and traffic of a plan at those rates.

    The two streams towards the device share a link, on which copies take turns; where a disk gives and takes, all do.
    Operations of a stream follow each other; each begins when those that it waits for are over, and when it is queued.
    Streams that compute take turns at the processor. Tiles that are `done` are left out.
    """
    model = Model(plan, rates)
    for op in operations(plan, done):
        model.run(op)
    return model.prediction()


class Model:
    """A device that has run some operations of a plan."""

    def __init__(self, plan: DevicePlan, rates: Rates) -> None:
        self._plan, self._rates = plan, rates
        self._free = dict.fromkeys((*STREAMS, *LANES, MIRRORING), 0.0)
        self._processor = 0.0
        self._allocated = {(name, 0) for name in FIRST if plan.buffers[name][0]}
        self._queued = sum(plan.buffers[name][1] for name, _ in self._allocated) * rates.allocate + rates.ready
        self._link = {"h2d": 0.0, "d2h": 0.0}
        self._ends: list[float] = []
        # Operations of one shape come again and again.
        self._durations: dict[Hashable, float] = {}
        self._compute = 0.0
        self._moved = {"h2d": 0, "d2h": 0}
        self._flop = 0

    @property
    def seconds(self) -> float:
        """When everything so far is over."""
        return max(self._free.values())

    def run(self, op: Op) -> tuple[float, float]:
        """Run the next operation; return when it begins and ends."""
        ends, rates = self._ends, self._rates
        # The host allocates a buffer when an operation is the first to fill it, and queues one after another.
        if (filled := _filled(self._plan, op)) not in self._allocated:
            self._allocated.add(filled)
            self._queued += self._plan.buffers.get(filled[0], (0, 0))[1] * rates.allocate
        start = max(self._free[op.stream], self._queued)
        self._queued += rates.issue
        for number in op.after:
            start = max(start, ends[number])
        if isinstance(op, Load | Store):
            direction = "d2h" if op.stream == C_OUT else "h2d"
            ways = ("h2d", "d2h") if rates.one_disk else (direction,)
            for way in ways:
                start = max(start, self._link[way])
            end = start + self._moving(op)
            for way in ways:
                self._link[way] = end
            self._moved[direction] += op.nbytes
        else:
            start = max(start, self._processor)
            duration = self._computing(op)
            self._processor = end = start + duration
            self._compute += duration
            if isinstance(op, Multiply):
                self._flop += op.flop
        self._free[op.stream] = end
        ends.append(end)
        return start, end

    def _moving(self, op: Load | Store) -> float:
        line = _line(self._plan, op)
        key = (op.stream, op.nbytes, line)
        if key not in self._durations:
            over = self._rates.departing if op.stream == C_OUT else self._rates.arriving
            self._durations[key] = self._rates.launch + over(op.nbytes, line)
        return self._durations[key]

    def _computing(self, op: Op) -> float:
        plan, rates = self._plan, self._rates
        key = (type(op), (op.shape, op.needed) if isinstance(op, Multiply) else _area(op))
        if key not in self._durations:
            if isinstance(op, Multiply):
                took = rates.seconds(*op.shape, added=plan.grid[2] > 1, lanes=plan.lanes, needed=op.needed)
            elif isinstance(op, Convert):
                took = _area(op) * (plan.sum_dtype.itemsize + plan.product.out.itemsize) / CONVERT_RATE
            else:
                took = 2 * _area(op) * plan.product.out.itemsize / CONVERT_RATE
            self._durations[key] = rates.launch + took
        return self._durations[key]

    def prediction(self) -> Prediction:
        """Return the totals so far."""
        rates, moved = self._rates, self._moved
        return Prediction(
            seconds=self.seconds,
            compute_s=self._compute,
            h2d_s=moved["h2d"] / rates.h2d,
            d2h_s=moved["d2h"] / rates.d2h,
            source_s=moved["h2d"] / rates.source,
            sink_s=moved["d2h"] / rates.sink,
            bytes_in=moved["h2d"],
            bytes_out=moved["d2h"],
            flop=self._flop,
            files=rates.files,
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


def _area(op: Op) -> int:
    assert isinstance(op, Convert | Mirror | Reflect)
    return (op.rows[1] - op.rows[0]) * (op.cols[1] - op.cols[0])
