"""What a large product reads from and writes to: the protocols, and the transposed view of a source."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
AnyDType = np.dtype[Any]


def native(dtype: AnyDType) -> AnyDType:
    """Return `dtype` in native byte order."""
    return dtype if dtype.isnative else np.dtype(dtype.type)


class MatrixSource(Protocol):
    """A matrix that can be read piece by piece."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> AnyDType:
        """Element type that `read` delivers, native byte order."""

    @property
    def order(self) -> str:
        """``C`` where rows are contiguous, ``F`` where columns are."""

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read.

        `rows` and `cols` have a start and a stop within the matrix. The rows of `out` are contiguous where `order`
        is ``C``, its columns where it is ``F``.
        """


class MatrixSink(Protocol):
    """A matrix that is written tile by tile, and is there only once it is committed."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> AnyDType:
        """Element type."""

    def write(self, row: int, col: int, tile: Array) -> int:
        """Put `tile`, whose rows are contiguous, at (row, col); return the bytes written."""

    def flush(self) -> None:
        """Return when all that was written is stored."""

    def written(self) -> MatrixSource:
        """Return what was written, to be read back before the commit."""

    def commit(self) -> None:
        """Let the finished matrix appear."""

    def abort(self) -> None:
        """Leave nothing behind. Does nothing after a commit."""


class TransposedSource:
    """The transpose of a source, without a copy.

    Parameters
    ----------
    source : MatrixSource
        The matrix to transpose.
    """

    def __init__(self, source: MatrixSource) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self._source.name} transposed"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, cols = self._source.shape
        return cols, rows

    @property
    def dtype(self) -> AnyDType:
        """Element type."""
        return self._source.dtype

    @property
    def order(self) -> str:
        """``C`` where rows are contiguous, ``F`` where columns are."""
        return "C" if self._source.order == "F" else "F"

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read."""
        return self._source.read(cols, rows, out.T)
