"""Measures what a plan of a streamed product needs to know of a GPU: its links, and the rate of its kernels."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FEWEST_INT8_PRODUCTS
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.executor.streams import DeviceMatrix, DeviceProduct, matrix_bytes

from .streams import GpuStreams

#: Bytes of a copy that is timed, copies of a sample, and bytes of its lines: more take longer to pin than to copy.
_COPY_BYTES, _COPIES, _LINE = 8 << 20, 4, 1 << 14
#: Share of the links' rates that a GPU's copy engine reaches with lines of so many bytes and more that lie apart, as
#: measured on an H200; the same for every pitch.
LINES = (
    (0, 0.28), (2 << 10, 0.37), (5 << 10, 0.45), (8 << 10, 0.52), (16 << 10, 0.65), (20 << 10, 0.78), (24 << 10, 0.84),
    (40 << 10, 0.95), (64 << 10, 1.0),
)  # fmt: skip
#: Seconds in which the host queues an operation of a product, its kernel's parameters packed anew, and in which a byte
#: of the GPU's memory is allocated, as measured on an H200.
ISSUE_S, ALLOCATE_S = 2e-4, 6e-13
#: Repetitions of a block of random numbers, each shifted by one element.
_SHIFTS = 4093
#: Sides of the product that is timed, and its depth.
SHAPE = _SIDE, _DEPTH = 4096, 2048
#: Sides of a product that every kernel is fast for.
_LARGE = 4 * _SIDE


def link_rates(device: GpuStreams) -> tuple[float, float]:
    """Return the bytes a second that pinned memory and the GPU exchange while both directions work: there, and back."""
    host = device.pinned(2 * _COPY_BYTES).reshape(2, -1, _LINE)
    streams = device.stream(), device.stream()
    lines = host.shape[1]
    there, back = (
        DeviceMatrix.compact(device.allocate(_COPY_BYTES), np.dtype(np.uint8), lines, _LINE) for _ in range(2)
    )
    best = [0.0, 0.0]
    for _ in range(3):
        starts = [device.record(stream) for stream in streams]
        for _ in range(_COPIES):
            device.copy_in(streams[0], there, host[0])
            device.copy_out(streams[1], host[1], back)
        ends = [device.record(stream) for stream in streams]
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            device.synchronize(end)
            best[place] = max(best[place], _COPIES * _COPY_BYTES / device.seconds(start, end))
    return best[0], best[1]


@dataclass(frozen=True)
class Operands:
    """The types of A, B and the result of a product, and the orders of A and B: ``C`` or ``F``."""

    a: np.dtype[Any]
    b: np.dtype[Any]
    d: np.dtype[Any]
    orders: str = "CC"
    #: Rows and columns of the result that is computed in tiles; emulation is timed as it is chosen for the largest.
    sides: tuple[int, int] = (_LARGE, _LARGE)

    def matrices(self, extents: Sequence[tuple[int, int]]) -> Iterator[DeviceMatrix]:
        """Yield A, B and the result of these rows and columns; buffers are to be put in."""
        for dtype, shape, order in zip((self.a, self.b, self.d), extents, self.orders + "C", strict=True):
            yield DeviceMatrix.compact(0, dtype, *shape, order)


def product_rate(
    device: GpuStreams, operands: Operands, *, added: bool, side: int = _SIDE, depth: int = _DEPTH, seconds: float = 0.1
) -> float:
    """Return the FLOP/s of a product of those operands, added to what is there or not.

    Parameters
    ----------
    device : GpuStreams
        The GPU; it is given no memory back before it is closed.
    operands : Operands
        Types and orders of the matrices.
    added : bool
        Add the product to the matrix in the result's place.
    side, depth : int
        Rows and columns, and terms of each sum.
    seconds : float
        For how long it is repeated: a GPU slows down as it gets warm.
    """
    stream = device.stream()
    product = _product(device, stream, operands, side, depth)
    if added:
        product = dataclasses.replace(product, beta=1, c=product.d)

    def timed(calls: int) -> float:
        start = device.record(stream)
        for _ in range(calls):
            device.multiply(stream, product)
        end = device.record(stream)
        device.synchronize(end)
        return device.seconds(start, end) / calls

    timed(1)
    each = min(timed(1) for _ in range(2))
    each = timed(max(round(seconds / each), 1))
    return 2.0 * side * side * depth / each


@dataclass(frozen=True)
class PartSeconds:
    """Seconds of a product's launches other than the longest, which multiplies; zeros for a single launch."""

    split: float  #: Before it, for each element of the factors: of kernels that split them into parts.
    join: float  #: After it, for each element of the result.

    def multiplying(self, rate: float, side: int = _SIDE, depth: int = _DEPTH) -> float:
        """Return the FLOP/s of the launch that multiplies, from those of the whole product."""
        whole = 2.0 * side * side * depth / rate
        rest = whole - 2 * side * depth * self.split - side * side * self.join
        return 2.0 * side * side * depth / max(rest, whole / 2)


def part_seconds(device: GpuStreams, operands: Operands, calls: int = 10) -> PartSeconds:
    """Measure what a product takes before and after its longest launch."""
    stream = device.stream()
    launches = device.launches(stream, _product(device, stream, operands, _SIDE, _DEPTH))
    if len(launches) == 1:
        return PartSeconds(0.0, 0.0)
    # In their order, since later launches read a guard's decision.
    runs = []
    for _ in range(calls + 1):
        events = [device.record(stream)]
        for launch in launches:
            launch()
            events.append(device.record(stream))
        runs.append(events)
    device.synchronize(runs[-1][-1])
    # While the first product runs, the host gets ahead.
    spans = [[device.seconds(*pair) for pair in itertools.pairwise(events)] for events in runs[1:]]
    each = [sum(times) / calls for times in zip(*spans, strict=True)]
    longest = each.index(max(each))
    return PartSeconds(sum(each[:longest]) / (2 * _SIDE * _DEPTH), sum(each[longest + 1 :]) / (_SIDE * _SIDE))


def _product(device: GpuStreams, stream: int, operands: Operands, side: int, depth: int) -> DeviceProduct:
    """Return a product on the device, its matrices filled with numbers."""
    matrices = []
    numbers = np.random.default_rng(0).standard_normal((1 << 20) + _SHIFTS)
    for matrix in operands.matrices(((side, depth), (depth, side), (side, side))):
        nbytes = matrix_bytes(matrix.rows, matrix.cols, matrix.dtype.itemsize, matrix.order)
        buffer = device.allocate(nbytes)
        # The power that a product takes, and with it the clock, depends on its numbers.
        _fill(device, stream, buffer, nbytes, numbers.astype(matrix.dtype))
        matrices.append(dataclasses.replace(matrix, buffer=buffer))
    a, b, d = matrices
    return DeviceProduct(a, b, d, like=_timed_like(device, operands))


def _timed_like(device: GpuStreams, operands: Operands) -> tuple[int, int] | None:
    """Return the extents of the product whose kernel is timed: emulation pays for large tiles, not for what is timed.

    A result that is itself small is not emulated.
    """
    if device.precision not in FEWEST_INT8_PRODUCTS:
        return None
    rows, cols = (max(min(side, _LARGE), 1) for side in operands.sides)
    return rows, cols


def _fill(device: GpuStreams, stream: int, buffer: int, nbytes: int, numbers: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Fill device memory with numbers, again and again, shifted each time; few of them are pinned."""
    given = device.pinned(numbers.nbytes)
    given[:] = numbers.view(np.uint8)
    item = numbers.dtype.itemsize
    size = numbers.nbytes - _SHIFTS * item
    for place, start in enumerate(range(0, nbytes, size)):
        length = min(size, nbytes - start)
        shift = place % _SHIFTS * item
        target = DeviceMatrix(buffer, np.dtype(np.uint8), 1, length, length, offset=start)
        device.copy_in(stream, target, given[None, shift : shift + length])


def large_product(operands: Operands) -> DeviceProduct:
    """Return a large product of those operands, of which only the kernel is wanted: its matrices have no memory."""
    a, b, d = operands.matrices(((_LARGE, _LARGE),) * 3)
    return DeviceProduct(a, b, d)


def timed_choices(device: GpuStreams, operands: Operands, sums: np.dtype[Any]) -> list[tuple[Choice, GemmProblem]]:
    """Return the kernels that rates of a product, and of one that is added to sums of that type, are measured of."""
    extents = (_SIDE, _DEPTH), (_DEPTH, _SIDE), (_SIDE, _SIDE)
    a, b, d = operands.matrices(extents)
    *_, total = dataclasses.replace(operands, d=sums).matrices(extents)
    like = _timed_like(device, operands)
    return [
        device.choice(product)
        for product in (DeviceProduct(a, b, d, like=like), DeviceProduct(a, b, total, 1, 1, total, like))
    ]
