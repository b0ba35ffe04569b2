"""Rates of matrices through pinned buffers, measured with a product's own buffers and threads."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gemmule.core.dataclass import dataclass

from ....executor.streams import DeviceMatrix, DeviceStreams
from ...stores.arrays import ArraySink, ArraySource
from ...stores.matrix import Array
from ..planner.operation import AB_IN, C_OUT, Part, Store
from ..planner.rates import Rates
from ..planner.rings import Rings, cut_rings, pinned_bytes, without_handing
from .event_table import EventTable
from .output_writer import Drain
from .staging import Filler, Ring, StoppedError

#: Bytes of a line of the matrix that is staged.
_LINE = 1 << 16
#: Passes of a matrix while another one passes the other way.
_ROUNDS = 2
_U1 = np.dtype(np.uint8)


@dataclass(frozen=True)
class Sample:
    """Bytes of the matrix that is staged, and of a piece of it that crosses the link at a time."""

    piece: int = 128 << 20
    most: int = 512 << 20


SAMPLE = Sample()


@dataclass(frozen=True)
class Staged:
    """Rates of pageable matrices through pinned buffers."""

    #: source, sink: Bytes a second that reach the device, and that leave it, alone.
    source: float
    sink: float
    duplex: tuple[float, float]  #: The same while both work.
    pin: float  #: Seconds in which a byte of pinned memory is made.
    rings: Rings  #: The buffers.

    @property
    def figures(self) -> tuple[float, ...]:
        """The measurements, without the buffers."""
        return self.source, self.sink, *self.duplex, self.pin

    @classmethod
    def of(cls, figures: Sequence[float], pinned: int, threads: int) -> Staged:
        """Return the `figures` that were measured with so many bytes of pinned memory and threads."""
        source, sink, come, leave, pin = figures
        return cls(source, sink, (come, leave), pin, _rings(pinned, threads))

    def applied_to(self, rates: Rates) -> Rates:
        """Return rates with these, as for buffers of any size."""
        return dataclasses.replace(
            rates,
            source=without_handing(self.source, self.rings[AB_IN]),
            sink=without_handing(self.sink, self.rings[C_OUT]),
            duplex_shares=(min(self.duplex[0] / self.source, 1.0), min(self.duplex[1] / self.sink, 1.0)),
            pin=self.pin,
        )


def pinned_within(pinned: int, memory: int, sample: Sample = SAMPLE) -> int:
    """Return the bytes of pinned memory to measure with, of such budgets of that and of all host memory.

    The two matrices, each of twice as many bytes, count, too. 0 where that would be too little for a measurement.
    """
    found = min(pinned, memory // 5)
    return found if 2 * found >= sample.piece else 0


def staged_by(device: DeviceStreams, pinned: int, threads: int, sample: Sample = SAMPLE) -> Staged:
    """Stage a matrix to the device and another one back, each alone and both at the same time, as a product does.

    Parameters
    ----------
    pinned : int
        Bytes of pinned memory.
    threads : int
        Threads that fill buffers, and as many that empty them.
    """
    nbytes = min(sample.most, max(2 * pinned, sample.piece))
    with contextlib.closing(_Probe(device, nbytes, pinned, threads, sample.piece)) as probe:
        # The first round finds what no thread has used before.
        probe.timed(1, probe.come, probe.leave)
        (source,), (sink,) = probe.timed(1, probe.come), probe.timed(1, probe.leave)
        come, leave = probe.timed(_ROUNDS, probe.come, probe.leave)
        probe.event_table.check()
        return Staged(source, sink, (come, leave), probe.pin, probe.rings)


class _Probe:
    def __init__(self, device: DeviceStreams, nbytes: int, pinned: int, threads: int, piece_bytes: int) -> None:
        self._device, self._lines = device, nbytes // _LINE
        self.rings = _rings(pinned, threads)
        source, target = (_touched(self._lines, threads) for _ in range(2))
        self.event_table, self._stored = EventTable(), threading.Semaphore(0)
        begin = time.perf_counter()
        self._ring = Ring(device, *self.rings[AB_IN])
        self._drain = Drain(
            ArraySink(target, "target"), None, device, self.event_table, buffers=self.rings[C_OUT], threads=threads,
            stored=lambda *_: self._stored.release(),
        )  # fmt: skip
        self.pin = (time.perf_counter() - begin) / pinned_bytes(self.rings)
        self.event_table.stops += [self._ring.stop, self._drain.stop]
        self._streams = device.stream(), device.stream()
        piece = min(piece_bytes // _LINE, self._lines)
        self._there, self._back = (
            DeviceMatrix.compact(device.allocate(piece * _LINE), _U1, piece, _LINE) for _ in range(2)
        )
        self._places = [(top, min(top + piece, self._lines)) for top in range(0, self._lines, piece)]
        # Its threads last: where something fails before, nobody would end them.
        self._source, self._filler = ArraySource(source), Filler(self._ring, threads, device)

    def timed(self, rounds: int, *ways: Callable[[list[Part]], None]) -> list[float]:
        """Return the bytes a second of each way, all at the same time."""

        def one(way: Callable[[list[Part]], None]) -> float:
            try:
                with self._device.used():
                    begin = time.perf_counter()
                    way(self._places * rounds)
                    return rounds * self._lines * _LINE / (time.perf_counter() - begin)
            except BaseException as error:
                self.event_table.fail(error)
                raise

        with ThreadPoolExecutor(len(ways)) as pool:
            try:
                return list(pool.map(one, ways))
            except StoppedError:
                # The first error counts.
                self.event_table.check()
                raise

    def come(self, places: list[Part]) -> None:
        """Bring pieces to the device."""
        device, stream, end = self._device, self._streams[0], None
        parts = [self._filler.ask(self._source.read, _U1, place, (0, _LINE), "C") for place in places]
        for (top, _), futures in zip(places, parts, strict=True):
            for future in futures:
                filled = future.result()
                rows = slice(filled.rows[0] - top, filled.rows[1] - top)
                # Buffers may hold less than a line.
                device.copy_in(stream, self._there.part(rows, slice(*filled.cols)), filled.array)
                end = device.record(stream)
                self._ring.give(filled.buffer, end)
        device.synchronize(end)

    def leave(self, places: list[Part]) -> None:
        """Take pieces from the device."""
        for number, (top, bottom) in enumerate(places):
            size = (bottom - top) * _LINE
            op = Store(number, C_OUT, (), (number, 0), (top, bottom), (0, _LINE), 0, size, True, False)
            self._drain.store(self._streams[1], op, self._back.part(slice(0, bottom - top), slice(0, _LINE)))
        for _ in places:
            while not self._stored.acquire(timeout=0.1):
                self.event_table.check()

    def close(self) -> None:
        """Let all threads end."""
        self._drain.finish()
        self._filler.stop()


def _rings(pinned: int, threads: int) -> Rings:
    return cut_rings(("a", "out"), pinned, threads, _LINE)


def _touched(lines: int, threads: int) -> Array:
    """Return a matrix of bytes whose pages are there."""
    made = np.empty((lines, _LINE), np.uint8)
    part = -(-lines // threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: made[number * part : (number + 1) * part].fill(1), range(threads)))
    return made
