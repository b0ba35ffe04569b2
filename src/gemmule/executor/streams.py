"""The protocol of a device with its own memory, whose copies and products run beside each other on streams."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Protocol

import numpy as np

from ..core.block_triangle import BlockTriangle

Array = np.ndarray[Any, np.dtype[Any]]

#: Lines of a matrix in device memory begin at multiples of this many bytes.
LINE_BYTES = 128


def line_pitch(elements: int, itemsize: int) -> int:
    """Return the bytes from one line of so many elements to the next in device memory."""
    return -(-elements * itemsize // LINE_BYTES) * LINE_BYTES


def matrix_bytes(rows: int, cols: int, itemsize: int, order: str = "C") -> int:
    """Return the bytes that a matrix takes in device memory."""
    lines, along = (rows, cols) if order == "C" else (cols, rows)
    return lines * line_pitch(along, itemsize)


@dataclasses.dataclass(frozen=True)
class DeviceMatrix:
    """A matrix in a buffer of device memory.

    Attributes
    ----------
    buffer : object
        What `DeviceStreams.allocate` gave.
    dtype : dtype
        Element type.
    rows, cols : int
        Shape.
    pitch : int
        Bytes from one line to the next.
    order : str
        ``C`` where lines are rows, ``F`` where they are columns.
    offset : int
        Bytes of the buffer before the first element.
    """

    buffer: Any
    dtype: np.dtype[Any]
    rows: int
    cols: int
    pitch: int
    order: str = "C"
    offset: int = 0

    @classmethod
    def compact(cls, buffer: Any, dtype: np.dtype[Any], rows: int, cols: int, order: str = "C") -> DeviceMatrix:
        """Return the matrix of that shape at the start of a buffer."""
        return cls(buffer, dtype, rows, cols, line_pitch(cols if order == "C" else rows, dtype.itemsize), order)

    def shaped(self, rows: int, cols: int) -> DeviceMatrix:
        """Return the matrix of another shape that begins at the same element and has the same lines."""
        return DeviceMatrix(self.buffer, self.dtype, rows, cols, self.pitch, self.order, self.offset)

    @property
    def T(self) -> DeviceMatrix:  # noqa: N802 - the name that NumPy gives it
        """The transpose: the same memory."""
        order = "F" if self.order == "C" else "C"
        return DeviceMatrix(self.buffer, self.dtype, self.cols, self.rows, self.pitch, order, self.offset)

    def part(self, rows: slice, cols: slice) -> DeviceMatrix:
        """Return a part of it, given by starts and stops within the matrix."""
        steps = (self.pitch, self.dtype.itemsize) if self.order == "C" else (self.dtype.itemsize, self.pitch)
        offset = self.offset + rows.start * steps[0] + cols.start * steps[1]
        shape = rows.stop - rows.start, cols.stop - cols.start
        return DeviceMatrix(self.buffer, self.dtype, *shape, self.pitch, self.order, offset)


class DeviceStreams(Protocol):
    """A device's memory and streams. Calls that name a stream return at once; the work runs in order of the calls.

    Every method may be called from any thread. It is a context manager: leaving the block waits for all work and gives
    the memory back.
    """

    @property
    def name(self) -> str:
        """``gpu`` or ``host``."""

    @property
    def whole(self) -> tuple[int, int, int]:
        """Extents m, n and k of whose multiples products are fast."""

    def __enter__(self) -> DeviceStreams: ...

    def __exit__(self, *exc: object) -> None: ...

    def describe(self) -> str:
        """Name the device."""

    def near(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which this thread, and those that it starts, run beside the device."""

    def used(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which this thread calls the device often, so that each call does less."""

    def allocate(self, nbytes: int) -> Any:
        """Return a buffer of device memory."""

    def pinned(self, nbytes: int) -> Array:
        """Return host memory as bytes that copies run from and to at the full rate, its pages there already."""

    def direct(self, array: Array) -> bool:
        """Whether copies run from and to this host array at the full rate, without being staged."""

    def stream(self, *, rank: int = 0) -> Any:
        """Return a new stream; what it computes begins before what waits on others with rank 1, after it with -1."""

    def copy_in(self, stream: Any, target: DeviceMatrix, source: Array) -> None:
        """Queue a copy to the device; `source` has lines of the same order and stays unchanged until it is done."""

    def copy_out(self, stream: Any, target: Array, source: DeviceMatrix) -> None:
        """Queue a copy from the device into a host array with lines of the same order."""

    def multiply(
        self,
        stream: Any,
        a: DeviceMatrix,
        b: DeviceMatrix,
        d: DeviceMatrix,
        alpha: float | int,
        beta: float | int = 0,
        c: DeviceMatrix | None = None,
        like: tuple[int, int] | None = None,
        needed: BlockTriangle | None = None,
    ) -> None:
        """Queue ``d = alpha * a @ b + beta * c``; `c` may be `d` itself.

        Parts of a product that run beside each other take the kernel of the whole, whose rows and columns `like` are.
        What of `d` is not `needed` may hold anything afterwards.
        """

    def prepare(
        self,
        stream: Any,
        a: DeviceMatrix,
        b: DeviceMatrix,
        d: DeviceMatrix,
        alpha: float | int,
        beta: float | int = 0,
        c: DeviceMatrix | None = None,
        like: tuple[int, int] | None = None,
        needed: BlockTriangle | None = None,
    ) -> None:
        """Make ready what `multiply` of these arguments needs, so that its first call takes no longer than others."""

    def convert(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue a copy on the device that rounds into another element type."""

    def prepare_convert(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Make ready what `convert` of these matrices needs."""

    def transpose(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue a copy of the transpose on the device, apart from its source."""

    def prepare_transpose(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Make ready what `transpose` of these matrices needs."""

    def record(self, stream: Any) -> Any:
        """Return an event that happens when the work queued so far is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let what is queued from now on begin after an event of another stream."""

    def synchronize(self, event: Any) -> None:
        """Return when an event has happened; raise what went wrong before it."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time from one event that has happened to another."""
