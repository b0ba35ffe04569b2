"""How fast matrices pass through pinned buffers: measured with the very buffers and threads that a product has."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...core.streams import DeviceMatrix, DeviceStreams
from ..arrays import ArraySink, ArraySource
from ..matrix import Array
from .board import Board
from .drain import Drain
from .operation import AB_IN, C_OUT, Store
from .rings import cut_rings, pinned_bytes
from .staging import Filler, Ring

#: Bytes of a line of the matrix that is staged, of a piece of it that crosses the link at a time, and of all of it.
_LINE, _PIECE, _MOST = 1 << 16, 128 << 20, 512 << 20
_U1 = np.dtype(np.uint8)


@dataclasses.dataclass(frozen=True)
class Staged:
    """How fast pageable matrices pass through pinned buffers while the links and both kinds of threads work.

    Attributes
    ----------
    source, sink : float
        Bytes a second that reach the device, and that leave it, both at once.
    pin : float
        Seconds in which a byte of pinned memory is made.
    """

    source: float
    sink: float
    pin: float


def staged_rates_of(device: DeviceStreams, pinned: int, threads: int, rounds: int = 2) -> Staged:
    """Stage a matrix to the device and another one back, at the same time, as a product of pageable matrices does.

    Parameters
    ----------
    device : DeviceStreams
        The device.
    pinned : int
        Bytes of pinned memory.
    threads : int
        Threads that fill buffers, and as many that empty them.
    rounds : int
        How often each matrix passes.
    """
    nbytes = min(_MOST, max(2 * pinned, _PIECE))
    lines, piece = nbytes // _LINE, min(_PIECE, nbytes) // _LINE
    cut = cut_rings(("a", "out"), pinned, threads, _LINE)
    source, target = (_touched(lines, threads) for _ in range(2))
    begin = time.perf_counter()
    ring, board = Ring(device, *cut[AB_IN]), Board()
    drain = Drain(ArraySink(target, "target"), None, device, board, buffers=cut[C_OUT], threads=threads, stored=None)
    pin = (time.perf_counter() - begin) / pinned_bytes(cut)
    filler = Filler(ring, threads, device)
    board.stops += [ring.stop, drain.stop]
    streams = device.stream(), device.stream()
    there, back = (DeviceMatrix.compact(device.allocate(piece * _LINE), _U1, piece, _LINE) for _ in range(2))
    places = [(top, min(top + piece, lines)) for _ in range(rounds) for top in range(0, lines, piece)]
    seconds = {}

    def come() -> None:
        with device.used():
            start, number = time.perf_counter(), 0
            for place in places:
                for filled in filler.ask(ArraySource(source).read, _U1, place, (0, _LINE), "C"):
                    part = filled.result()
                    rows = slice(part.rows[0] - place[0], part.rows[1] - place[0])
                    device.copy_in(streams[0], there.part(rows, slice(0, _LINE)), part.array)
                    ring.give(part.buffer, end := device.record(streams[0]))
                    number += 1
            device.synchronize(end)
            seconds["source"] = time.perf_counter() - start

    def leave() -> None:
        with device.used():
            start = time.perf_counter()
            for number, place in enumerate(places):
                size = (place[1] - place[0]) * _LINE
                op = Store(number, C_OUT, (), (number, 0), place, (0, _LINE), 0, size, True, False)
                drain.store(streams[1], op, back.part(slice(0, place[1] - place[0]), slice(0, _LINE)))
            drain.finish()
            seconds["sink"] = time.perf_counter() - start

    other = threading.Thread(target=leave)
    other.start()
    try:
        come()
    except BaseException as error:
        board.fail(error)
        raise
    finally:
        other.join()
        drain.finish()
        filler.stop()
    board.check()
    moved = rounds * nbytes
    return Staged(moved / seconds["source"], moved / seconds["sink"], pin)


def _touched(lines: int, threads: int) -> Array:
    """Return a matrix of bytes whose pages are there."""
    made = np.empty((lines, _LINE), np.uint8)
    part = -(-lines // threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: made[number * part : (number + 1) * part].fill(1), range(threads)))
    return made
