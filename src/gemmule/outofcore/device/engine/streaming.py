"""Streams a product through a device: the streams of its plan, joined by events."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Container, Hashable
from concurrent.futures import Future
from typing import Any

from gemmule.core.dataclass import dataclass

from ....executor.activity import Transfer
from ....executor.streams import DeviceMatrix, DeviceStreams
from ...stores.matrix import MatrixSink, MatrixSource
from ..planner.operation import (
    AB_IN,
    C_IN,
    C_OUT,
    LANES,
    MIRRORING,
    Convert,
    Load,
    Mirror,
    Multiply,
    Op,
    Reflect,
    Store,
)
from ..planner.plan import DevicePlan
from ..planner.queues import streams
from ..planner.rings import cut_rings, line_bytes
from ..planner.schedule import operations
from .buffers import Buffers
from .event_table import EventTable
from .host_memory import direct_memory
from .output_writer import Drain
from .progress import Progress, Watch
from .staging import Filled, Filler, Part, Ring
from .stream_workers import Lane

#: Products of a plan in strips whose kernels are loaded before anything is computed: as long as the first
#: slice is on its way. Each has a shape of its own, and those of the others are made ready meanwhile.
_READY = 2


@dataclass(frozen=True)
class Settings:
    """Host memory and threads of a product."""

    pinned: int = 256 << 20  #: Bytes of pinned memory for what cannot be copied from and to directly.
    threads: int = 4  #: Threads that fill pinned buffers, and as many that empty them.
    result: int | None = None  #: Pinned bytes for the result; half of all where operands are staged too.

    def share(self, count: int) -> Settings:
        """Return the share of each of so many devices."""
        result = None if self.result is None else self.result // count
        return Settings(self.pinned // count, max(self.threads // count, 1), result)


@dataclass(frozen=True)
class Tracking:
    """The state of the tiles of a product, and who follows it."""

    done: Container[tuple[int, int]] = ()  #: Tiles that are there already.
    progress: Callable[[Progress], None] | None = None  #: Called after every product on the device.
    stored: Callable[[int, int], None] | None = None  #: Called with the row and column of every tile that is written.


@dataclass(frozen=True)
class Streamed:
    """The times, traffic and activity of a streamed product."""

    seconds: float  #: From the start until everything is where it belongs.
    device_seconds: float  #: From the first operation on the device to the last.
    compute_s: float  #: Seconds of computing.
    flop: int  #: Operations that were computed.
    #: bytes_in, bytes_out: What crossed the links.
    bytes_in: int
    bytes_out: int
    #: bytes_read, bytes_written: What sources and sinks counted.
    bytes_read: int
    bytes_written: int
    tiles: int  #: Tiles that were computed.
    staged: tuple[str, ...]  #: Operands that went through pinned buffers.
    activity: tuple[Transfer, ...]  #: Times of operations, by stream.

    @property
    def exposed_share(self) -> float:
        """Share of the device's time in which nothing was computed, because something was waited for."""
        return 1 - self.compute_s / self.device_seconds if self.device_seconds else 0.0


def stream_product(
    plan: DevicePlan,
    sources: dict[str, MatrixSource],
    sink: MatrixSink,
    device: DeviceStreams,
    *,
    alpha: float | int = 1,
    beta: float | int = 0,
    settings: Settings | None = None,
    tracking: Tracking | None = None,
) -> Streamed:
    """Write ``alpha * a @ b + beta * c`` into `sink`, which is left to be committed.

    Parameters
    ----------
    sources : dict of str to MatrixSource
        ``a``, ``b`` and, where the plan adds one, ``c``.
    settings : Settings, optional
        Limits of host memory and threads.
    tracking : Tracking, optional
        Finished tiles, and the observer of the others.

    Returns
    -------
    Streamed
        Report of the run.
    """
    with device.near():
        run = _Run(plan, sources, sink, device, alpha, beta, settings, tracking)
        with contextlib.closing(run):
            return run.run()


class _Run:
    def __init__(
        self,
        plan: DevicePlan,
        sources: dict[str, MatrixSource],
        sink: MatrixSink,
        device: DeviceStreams,
        alpha: float | int,
        beta: float | int,
        settings: Settings | None,
        tracking: Tracking | None,
    ) -> None:
        settings, self.tracking = settings or Settings(), tracking or Tracking()
        self.plan, self.sources, self.sink, self.device = plan, sources, sink, device
        self.alpha, self.beta, self.done = alpha, beta, self.tracking.done
        self.begin = time.perf_counter()
        self.event_table = EventTable()
        self.buffers = Buffers(plan, device)
        self.memory = {
            name: direct_memory(source, self.buffers.order(name), device) for name, source in sources.items()
        }
        self.out = direct_memory(sink, "C", device)
        staged = [name for name, array in self.memory.items() if array is None and name in self._read()]
        self.staged = (*staged, *(["out"] if self.out is None else []))
        cut = cut_rings(self.staged, settings.pinned, settings.threads, line_bytes(plan), settings.result)
        self.rings = {stream: Ring(device, *cut[stream]) for stream in cut if stream != C_OUT}
        self.fillers = {stream: Filler(ring, settings.threads, device) for stream, ring in self.rings.items()}
        self.drain = Drain(
            sink,
            self.out,
            device,
            self.event_table,
            buffers=cut.get(C_OUT),
            threads=settings.threads,
            stored=self.tracking.stored,
        )
        self.event_table.stops += [*(ring.stop for ring in self.rings.values()), self.drain.stop]
        self.lock = threading.Lock()
        self.events: list[tuple[Op, Any, Any]] = []
        self.bytes_read = 0
        self.lanes: list[Lane[list[Future[Filled]]]] = []
        self.watch: Watch | None = None
        self.finished = False

    def _read(self) -> set[str]:
        product = self.plan.product
        names = {"a"} if self.plan.symmetric else {"a", "b"}
        return (names if product.k else set()) | ({"c"} if product.c else set())

    def run(self) -> Streamed:
        """Run all operations."""
        # Threads take turns in Python: where none has to wait for the host, one queues everything fastest.
        threaded = bool(self.staged)
        runs: dict[str, Callable[[Any, Op, Any], tuple[Any, Any]]] = {
            **dict.fromkeys((C_IN, AB_IN), self._load), C_OUT: self._store,
        }  # fmt: skip
        lanes: dict[str, Lane[list[Future[Filled]]]] = {}
        for name, rank in streams(self.plan).items():
            run = runs.get(name, self._compute)
            lanes[name] = Lane(name, self.device, self.event_table, run, self._note, threaded=threaded, rank=rank)
            self.lanes.append(lanes[name])
        self.watch = Watch(
            operations(self.plan, self.done), self.device, self.event_table, self.tracking.progress, self.begin
        )
        prepared = False
        try:
            for op in operations(self.plan, self.done):
                if self.event_table.failed:
                    break
                if not prepared and op.stream in LANES:
                    # The first slices are on their way meanwhile.
                    self._prepare(lanes[op.stream].stream)
                    prepared = True
                lanes[op.stream].put(op, self._prepared(op))
        except BaseException as error:
            self.event_table.fail(error)
            raise
        finally:
            self._finish()
        self.event_table.check()
        # Streams work in order: what each was given last is what is waited for.
        for end in {op.stream: end for op, _, end in self.events}.values():
            self.device.synchronize(end)
        self.sink.flush()
        return self._report(time.perf_counter() - self.begin)

    def _finish(self) -> None:
        """Wait for every thread. An interruption lets them stop, and even then they are waited for.

        Their output and the memory that they copy from are released afterwards.
        """
        interrupted: BaseException | None = None
        while not self.finished:
            try:
                for lane in self.lanes:
                    lane.finish()
                if self.watch is not None:
                    self.watch.finish()
                self.drain.finish()
                self.finished = True
            except BaseException as error:
                interrupted = interrupted or error
                self.event_table.fail(error)
        if interrupted is not None:
            raise interrupted

    def close(self) -> None:
        """Give threads back, when they have ended."""
        if not self.finished:
            self.event_table.fail(RuntimeError("closed before everything was queued"))
            self._finish()
        for filler in self.fillers.values():
            filler.stop()
        self.drain.stop()

    def _prepared(self, op: Op) -> list[Future[Filled]]:
        """Start reading what an operation needs that cannot be copied directly."""
        if not isinstance(op, Load) or self.memory[op.operand] is not None:
            return []
        source = self.sources[op.operand]
        order, shared = self.buffers.order(op.operand), source.block_shape == (1, 1)
        return self.fillers[op.stream].ask(source.read, source.dtype, op.rows, op.cols, order, shared=shared)

    def _note(self, op: Op, start: Any, end: Any) -> None:
        with self.lock:
            self.events.append((op, start, end))
        assert self.watch is not None
        self.watch.put(op, end)

    # The methods below run in the threads of the streams.

    def _load(self, stream: Any, op: Op, parts: list[Future[Filled]]) -> tuple[Any, Any]:
        assert isinstance(op, Load)
        target = self.buffers.piece(op.operand, op.slot, op.rows, op.cols)
        array = self.memory[op.operand]
        if array is not None:
            start = self.device.record(stream)
            self.device.copy_in(stream, target, array[slice(*op.rows), slice(*op.cols)])
            return start, self.device.record(stream)
        start = end = None
        for future in parts:
            filled = future.result()
            with self.lock:
                # Two streams bring matrices.
                self.bytes_read += filled.read
            start = start or self.device.record(stream)
            rows, cols = _within(filled.rows, op.rows), _within(filled.cols, op.cols)
            self.device.copy_in(stream, target.part(rows, cols), filled.array)
            end = self.device.record(stream)
            self.rings[op.stream].give(filled.buffer, end)
        return start, end

    def _compute(self, stream: Any, op: Op, _: Any) -> tuple[Any, Any]:
        start = self.device.record(stream)
        if isinstance(op, Convert):
            self.device.convert(stream, *self._converted(op))
        elif isinstance(op, Mirror):
            self.device.transpose(stream, *self.buffers.mirrored(op))
        elif isinstance(op, Reflect):
            self.device.transpose(stream, *self.buffers.reflected(op))
        else:
            assert isinstance(op, Multiply)
            for product in self.buffers.products(op, self.alpha, self.beta):
                self.device.multiply(stream, product)
        return start, self.device.record(stream)

    def _converted(self, op: Convert) -> tuple[DeviceMatrix, DeviceMatrix]:
        """Return the part of a result, and the sum that is rounded into it."""
        rows, cols = self.buffers.tile(op)
        source = self.buffers.whole_tile("sum", op.source, op).part(rows, cols)
        return self.buffers.whole_tile("out", op.target, op).part(rows, cols), source

    def _prepare(self, stream: Any) -> None:
        """Make every kernel ready that will be needed; of a plan in strips, the first ones."""
        seen: set[Hashable] = set()
        for op in operations(self.plan, self.done):
            if self.plan.cut and len(seen) == _READY:
                return
            if isinstance(op, Multiply):
                kind = (op.shape, op.first, op.last)
                if kind not in seen:
                    seen.add(kind)
                    for product in self.buffers.products(op, self.alpha, self.beta):
                        self.device.prepare(stream, product)
            elif isinstance(op, Convert) and (op.rows, op.cols) not in seen:
                seen.add((op.rows, op.cols))
                self.device.prepare_convert(stream, *self._converted(op))
            elif isinstance(op, Mirror) and (op.rows, op.cols) not in seen:
                seen.add((op.rows, op.cols))
                self.device.prepare_transpose(stream, *self.buffers.mirrored(op))
            elif isinstance(op, Reflect) and (op.rows, op.cols) not in seen:
                seen.add((op.rows, op.cols))
                self.device.prepare_transpose(stream, *self.buffers.reflected(op))

    def _store(self, stream: Any, op: Op, _: Any) -> tuple[Any, Any]:
        assert isinstance(op, Store)
        return self.drain.store(stream, op, self.buffers.stored(op))

    def _report(self, seconds: float) -> Streamed:
        """Say what it took. Everything is done."""
        activity = []
        counts = dict.fromkeys((C_IN, AB_IN, *LANES, MIRRORING, C_OUT), 0)
        first = self.events[0][1] if self.events else None
        for op, start, end in self.events:
            begin = self.device.seconds(first, start)
            length = self.device.seconds(start, end)
            size = op.flop if isinstance(op, Multiply) else op.nbytes if isinstance(op, Load | Store) else 0
            counts[op.stream] += size
            activity.append(Transfer(_label(op), _ns(begin), _ns(begin + length), op.stream, size))
        activity.sort(key=lambda one: one.start_ns)
        # The first that was queued need not be the first that ran.
        zero = activity[0].start_ns if activity else 0
        activity = [
            dataclasses.replace(one, start_ns=one.start_ns - zero, end_ns=one.end_ns - zero) for one in activity
        ]
        return Streamed(
            seconds=seconds,
            device_seconds=max((one.end_ns for one in activity), default=0) / 1e9,
            compute_s=_covered([one for one in activity if one.stream in (*LANES, MIRRORING)]) / 1e9,
            flop=sum(counts[stream] for stream in LANES),
            bytes_in=counts[C_IN] + counts[AB_IN],
            bytes_out=counts[C_OUT],
            bytes_read=self.bytes_read,
            bytes_written=self.drain.bytes_written,
            tiles=self.drain.tiles,
            staged=self.staged,
            activity=tuple(activity),
        )


def _within(part: Part, whole: Part) -> slice:
    return slice(part[0] - whole[0], part[1] - whole[0])


def _covered(spans: list[Transfer]) -> int:
    """Return the nanoseconds in which at least one of them runs, of spans that are sorted by their start."""
    total = end = 0
    for one in spans:
        total += max(one.end_ns - max(one.start_ns, end), 0)
        end = max(end, one.end_ns)
    return total


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _label(op: Op) -> str:
    """Name an operation in a timeline."""
    if isinstance(op, Load):
        return f"{op.operand.upper()}[{op.rows[0]}:{op.rows[1]}, {op.cols[0]}:{op.cols[1]}]"
    assert isinstance(op, Multiply | Convert | Mirror | Reflect | Store)
    return f"C{op.tile}{'^T' * (isinstance(op, Store) and op.mirrored)}"
