"""Protocols of the matrices that a large product reads and writes, and the transposed view of a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...core.dtype import EXTENSION_FLOATS
from ...core.errors import DTypeError, ShapeError

Array = np.ndarray[Any, np.dtype[Any]]
AnyDType = np.dtype[Any]
#: Says of the rows and columns of a tile whether it is in the sink already, from a run before.
Finished = Callable[[slice, slice], bool]


def native(dtype: AnyDType) -> AnyDType:
    """Return `dtype` in native byte order."""
    return dtype if dtype.isnative else np.dtype(dtype.type)


def check_dtype(dtype: AnyDType, name: str) -> None:
    """Refuse elements that no executor multiplies: objects, text, booleans, numbers wider than float64 or complex128.

    Raises
    ------
    DTypeError
        If the type is one of these; the message begins with `name`.
    """
    if dtype.name not in EXTENSION_FLOATS and (
        dtype.kind not in "iufc" or dtype.itemsize > 8 * (1 + (dtype.kind == "c"))
    ):
        remedy = "convert it with astype to a float or integer type"
        if names := getattr(dtype, "names", None):
            remedy = f"save one of its fields, such as {names[0]!r}"
        raise DTypeError(f"{name}: dtype {dtype} is not multiplied; {remedy}")


def check_extents(shape: tuple[int, int], dtype: AnyDType, name: str) -> None:
    """Refuse a shape that the metadata of a store claims and no computer holds.

    Raises
    ------
    ShapeError
        If an extent is negative, or the bytes of the matrix have no 64-bit address.
    """
    if min(shape) < 0 or shape[0] * shape[1] * dtype.itemsize >= 2**63 or max(shape) >= 2**63:
        raise ShapeError(
            f"{name}: metadata gives the shape {shape}; extents are at least 0, and a matrix has less than 2**63 "
            "bytes; write it again"
        )


class Stored(Protocol):
    """What a matrix that is read and one that is written have in common."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> AnyDType:
        """Element type that `read` delivers and `write` takes, native byte order."""

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns of the blocks that the store reads or writes as a whole; (1, 1) where it does any piece."""

    @property
    def scratch_bytes(self) -> int:
        """Most bytes of memory that one read or write takes besides its array."""


class MatrixSource(Stored, Protocol):
    """A matrix that can be read piece by piece."""

    @property
    def order(self) -> str:
        """``C`` where rows are contiguous, ``F`` where columns are."""

    @property
    def stored_itemsize(self) -> int:
        """Bytes of an element as it is stored: what a read counts."""

    @property
    def path(self) -> str | None:
        """File or folder that holds it; None where it is in memory only."""

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read; threads may read at once.

        `rows` and `cols` have a start and a stop within the matrix. The rows of `out` are contiguous where `order`
        is ``C``, its columns where it is ``F``.
        """

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of this matrix, which changes with it, in values that JSON has."""

    def close(self) -> None:
        """Close what was opened for it."""


class MatrixSink(Stored, Protocol):
    """A matrix that is written tile by tile, and is there only once it is committed.

    Tiles begin at multiples of `block_shape`, and end at multiples of it or at the edge of the matrix.
    """

    def write(self, row: int, col: int, tile: Array) -> int:
        """Put `tile`, whose rows are contiguous, at (row, col); return the bytes written.

        Threads may write different tiles at once. The tile's memory is free for other use afterwards.
        """

    def flush(self) -> None:
        """Return when all that was written before the call is stored."""

    def written(self) -> MatrixSource:
        """Return the written matrix, to be read back before the commit."""

    def commit(self) -> None:
        """Let the finished matrix appear."""

    def abort(self) -> None:
        """Leave nothing behind. Does nothing after a commit."""


class TransposedSource:
    """The transpose of a source, without a copy."""

    def __init__(self, source: MatrixSource) -> None:
        self.source = source
        self.name = f"{source.name} transposed"
        self.shape = source.shape[1], source.shape[0]
        self.block_shape = source.block_shape[1], source.block_shape[0]
        self.order = "C" if source.order == "F" else "F"
        self.dtype, self.stored_itemsize, self.path = source.dtype, source.stored_itemsize, source.path
        self.scratch_bytes = source.scratch_bytes

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        return self.source.read(cols, rows, out.T)

    def fingerprint(self) -> dict[str, Any]:
        return {**self.source.fingerprint(), "transposed": True}

    def close(self) -> None:
        """Close the source."""
        self.source.close()
