"""The protocol of a device with its own memory, whose copies and products overlap on streams."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import numpy as np

from gemmule.core.dataclass import dataclass

from ..core.block_triangle import BlockTriangle

Array = np.ndarray[Any, np.dtype[Any]]

#: Alignment in bytes of rows (or columns) of a matrix in device memory.
LINE_BYTES = 128


def line_pitch(elements: int, itemsize: int) -> int:
    """Return the stride in bytes of lines (rows or columns) of a number of elements."""
    return -(-elements * itemsize // LINE_BYTES) * LINE_BYTES


def matrix_bytes(rows: int, cols: int, itemsize: int, order: str = "C") -> int:
    """Return the bytes of a matrix in device memory."""
    lines, along = (rows, cols) if order == "C" else (cols, rows)
    return lines * line_pitch(along, itemsize)


@dataclass(frozen=True)
class DeviceMatrix:
    """A matrix in a buffer of device memory."""

    buffer: Any  #: Object. Buffer of `DeviceStreams.allocate`.
    dtype: np.dtype[Any]  #: Element type.
    #: rows, cols: Shape.
    rows: int
    cols: int
    pitch: int  #: Stride in bytes from one line to the next.
    order: str = "C"  #: ``C`` if lines are rows, ``F`` if columns.
    offset: int = 0  #: Byte offset of the first element.

    @classmethod
    def compact(cls, buffer: Any, dtype: np.dtype[Any], rows: int, cols: int, order: str = "C") -> DeviceMatrix:
        """Return the matrix of a shape at the start of a buffer."""
        return cls(buffer, dtype, rows, cols, line_pitch(cols if order == "C" else rows, dtype.itemsize), order)

    def shaped(self, rows: int, cols: int) -> DeviceMatrix:
        """Return a matrix of another shape with the same first element and stride."""
        return DeviceMatrix(self.buffer, self.dtype, rows, cols, self.pitch, self.order, self.offset)

    @property
    def T(self) -> DeviceMatrix:  # noqa: N802 - the name that NumPy gives it
        """The transpose: the same memory."""
        order = "F" if self.order == "C" else "C"
        return DeviceMatrix(self.buffer, self.dtype, self.cols, self.rows, self.pitch, order, self.offset)

    def part(self, rows: slice, cols: slice) -> DeviceMatrix:
        """Return a submatrix; slices have starts and stops within the matrix."""
        steps = (self.pitch, self.dtype.itemsize) if self.order == "C" else (self.dtype.itemsize, self.pitch)
        offset = self.offset + rows.start * steps[0] + cols.start * steps[1]
        shape = rows.stop - rows.start, cols.stop - cols.start
        return DeviceMatrix(self.buffer, self.dtype, *shape, self.pitch, self.order, offset)


@dataclass(frozen=True)
class DeviceProduct:
    """``d = alpha * a @ b + beta * c`` of matrices in device memory; `c` may be `d` itself."""

    #: a, b, d: Factors and result.
    a: DeviceMatrix
    b: DeviceMatrix
    d: DeviceMatrix
    #: alpha, beta: Scalars.
    alpha: float | int = 1
    beta: float | int = 0
    c: DeviceMatrix | None = None  #: Matrix to add.
    #: Rows and columns of the product that this one is a part of: concurrent parts use the kernel chosen for it.
    like: tuple[int, int] | None = None
    needed: BlockTriangle | None = None  #: Elements of `d` that are read; the others are undefined.


class DeviceStreams(Protocol):
    """A device's memory and streams. Calls with a stream are asynchronous and run in stream order.

    Methods are thread-safe. As a context manager it waits for all work and frees the memory.
    """

    @property
    def name(self) -> str:
        """``gpu`` or ``cpu``."""

    @property
    def whole(self) -> tuple[int, int, int]:
        """Extents m, n and k to whose multiples tiles should be rounded."""

    def __enter__(self) -> DeviceStreams: ...

    def __exit__(self, *exc: object) -> None: ...

    def describe(self) -> str:
        """Name the device."""

    def near(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that binds this thread, and threads it starts, to the device's NUMA node."""

    def used(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the device current in this thread, so that each call has less overhead."""

    def allocate(self, nbytes: int) -> Any:
        """Return a buffer of device memory."""

    def pinned(self, nbytes: int) -> Array:
        """Return pinned host memory as bytes, its pages already present."""

    def direct(self, array: Array) -> bool:
        """Return whether copies from and to this host array need no staging."""

    def stream(self, *, rank: int = 0) -> Any:
        """Return a new stream; its waiting work has higher priority with rank 1, lower with -1."""

    def copy_in(self, stream: Any, target: DeviceMatrix, source: Array) -> None:
        """Queue a copy to the device; `source` has lines of the same order and must not change until then."""

    def copy_out(self, stream: Any, target: Array, source: DeviceMatrix) -> None:
        """Queue a copy from the device into a host array with lines of the same order."""

    def multiply(self, stream: Any, product: DeviceProduct) -> None:
        """Queue a product."""

    def prepare(self, stream: Any, product: DeviceProduct) -> None:
        """Prepare `multiply` of this product, so that its first call is as fast as later ones."""

    def convert(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue a conversion to another element type, with rounding."""

    def prepare_convert(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Prepare `convert` of these matrices."""

    def transpose(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Queue an out-of-place transpose."""

    def prepare_transpose(self, stream: Any, target: DeviceMatrix, source: DeviceMatrix) -> None:
        """Prepare `transpose` of these matrices."""

    def record(self, stream: Any) -> Any:
        """Return an event that completes after the work queued so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let later work of a stream wait for an event of another stream."""

    def synchronize(self, event: Any) -> None:
        """Wait for an event; raise errors of the work before it."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the time between two completed events."""
