"""Sources whose elements are converted, or conjugated, while they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import DTypeError
from ..tiles.result_rules import plain_kind
from .matrix import AnyDType, Array, MatrixSource

#: Bytes as stored that are read and converted at a time.
BLOCK_BYTES = 1 << 20
_KINDS = "iufc"


class ConvertedSource:
    """A matrix that is stored in one type and multiplied in another.

    Parameters
    ----------
    source : MatrixSource
        The matrix as it is stored.
    dtype : dtype
        Type to convert to: of the same kind, integers also to floats, and real numbers to complex ones.
    block_bytes : int
        Bytes as stored that are read and converted at a time.

    Raises
    ------
    DTypeError
        If the type is of a lesser kind.
    """

    def __init__(self, source: MatrixSource, dtype: AnyDType, block_bytes: int = BLOCK_BYTES) -> None:
        kinds = [_KINDS.index(plain_kind(each).replace("u", "i")) for each in (source.dtype, dtype)]
        if kinds[0] > kinds[1]:
            raise DTypeError(
                f"{source.name}: {source.dtype} is not computed in {dtype}, which loses more than digits; give a "
                "compute dtype of that kind"
            )
        self.name = source.name
        self.shape = source.shape
        self.dtype: AnyDType = dtype
        self.order = source.order
        self.stored_itemsize = source.stored_itemsize
        self.block_shape = source.block_shape
        self.path = source.path
        # Blocks end where blocks of the store do.
        lines = source.block_shape[0] if source.order == "C" else source.block_shape[1]
        across = source.shape[1] if source.order == "C" else source.shape[0]
        item = source.dtype.itemsize
        self._block_bytes = block_bytes
        block = min(max(block_bytes, lines * across * item), source.shape[0] * source.shape[1] * item)
        self.scratch_bytes = source.scratch_bytes + block
        self._lines = lines
        self.source = source

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        if not out.size:
            return 0
        by_rows = self.order == "C"
        target = out if by_rows else out.T
        outer, inner = (rows, cols) if by_rows else (cols, rows)
        width = inner.stop - inner.start
        height = max(self._block_bytes // (width * self.source.dtype.itemsize), 1)
        height = max(height - height % self._lines, self._lines)
        buffer = np.empty((min(height, target.shape[0]), width), self.source.dtype)
        total = first = 0
        while first < target.shape[0]:
            # Up to the next multiple of the block, where it does not begin at one.
            last = min(first + height - (outer.start + first) % self._lines, target.shape[0])
            part = buffer[: last - first]
            piece = slice(outer.start + first, outer.start + last)
            total += self.source.read(*((piece, inner) if by_rows else (inner, piece)), part if by_rows else part.T)
            with np.errstate(over="ignore"):
                np.copyto(target[first:last], part, casting="unsafe")
            first = last
        return total

    def fingerprint(self) -> dict[str, Any]:
        return {**self.source.fingerprint(), "read_as": self.source.dtype.name, "computed_in": self.dtype.name}

    def close(self) -> None:
        """Close the source."""
        self.source.close()


class ConjugatedSource:
    """The complex conjugate of a matrix.

    Parameters
    ----------
    source : MatrixSource
        The matrix, of a complex type.
    """

    def __init__(self, source: MatrixSource) -> None:
        self.name = f"{source.name} conjugated"
        self.shape, self.dtype, self.order = source.shape, source.dtype, source.order
        self.stored_itemsize, self.block_shape = source.stored_itemsize, source.block_shape
        self.path, self.scratch_bytes = source.path, source.scratch_bytes
        self.source = source

    def read(self, rows: slice, cols: slice, out: Array) -> int:
        """Fill `out` with that piece and return the bytes read."""
        total = self.source.read(rows, cols, out)
        np.conjugate(out, out=out)
        return total

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of this matrix, which changes with it."""
        return {**self.source.fingerprint(), "conjugated": True}

    def close(self) -> None:
        """Close the source."""
        self.source.close()
