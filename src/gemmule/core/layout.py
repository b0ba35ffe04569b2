"""Strided matrices and names of their layouts."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.dataclass import dataclass

from .dtype import DType


@dataclass(frozen=True)
class StridedMatrix:
    """A matrix, or a batch of matrices, in memory."""

    dtype: DType  #: Element type.
    #: rows, cols: Shape of one matrix.
    rows: int
    cols: int
    #: row_stride, col_stride: Elements from one row, or column, to the next. Zero broadcasts; strides may be negative.
    row_stride: int
    col_stride: int
    #: Elements from one matrix to the next, for each batch dimension of the problem.
    batch_strides: tuple[int, ...] = ()
    alignment: int = 16  #: Alignment in bytes of the address of element (0, 0) of the first matrix.
    #: Whether memory after each line, up to where the next would begin, may be read and written: that of workspaces.
    padded: bool = dataclasses.field(default=False, kw_only=True)
    #: Whether the matrix is the complex conjugate of its memory.
    conj: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def is_row_major(self) -> bool:
        """Whether BLAS can take it as row-major: rows are contiguous, or of one element."""
        return self.col_stride == 1 or self.cols <= 1

    @property
    def is_col_major(self) -> bool:
        """Whether BLAS can take it as column-major: columns are contiguous, or of one element."""
        return self.row_stride == 1 or self.rows <= 1

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether it is row-major, and not a contiguous single column.

        With more than one element, this is true of at most one of a matrix and its transpose: it names one layout.
        """
        if self.cols > 1:
            return self.col_stride == 1
        return not (self.rows > 1 and self.row_stride == 1)

    @property
    def has_contiguous_cols(self) -> bool:
        """Whether it is column-major, and not a contiguous single row: the transpose `has_contiguous_rows`."""
        if self.rows > 1:
            return self.row_stride == 1
        return not (self.cols > 1 and self.col_stride == 1)

    def distinct_bytes(self, batch: tuple[int, ...]) -> int:
        """Return the bytes of its elements over `batch`, broadcast ones counted once."""
        if not batch and self.row_stride and self.col_stride:
            return self.dtype.itemsize * self.rows * self.cols
        extents = (self.rows, self.cols, *batch)
        strides = (self.row_stride, self.col_stride, *self.batch_strides)
        own = (extent if stride else min(extent, 1) for extent, stride in zip(extents, strides, strict=True))
        return self.dtype.itemsize * math.prod(own)

    def transposed(self) -> StridedMatrix:
        """Return the transpose, in the same memory."""
        # `dataclasses.replace` would take three times as long, in every choice of a kernel.
        return StridedMatrix(
            self.dtype,
            self.cols,
            self.rows,
            self.col_stride,
            self.row_stride,
            self.batch_strides,
            self.alignment,
            padded=self.padded,
            conj=self.conj,
        )


def contiguous(dtype: DType, rows: int, cols: int, batch: tuple[int, ...] = (), alignment: int = 16) -> StridedMatrix:
    """Return the contiguous row-major matrix of a shape, batch dimensions outermost."""
    strides = compact_strides((*batch, rows, cols))
    return StridedMatrix(dtype, rows, cols, strides[-2], strides[-1], strides[:-2], alignment)


def element_alignment(itemsize: int) -> int:
    """Return the alignment in bytes that a GPU requires to load an element."""
    return min(itemsize, 8)


def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-ordered array."""
    return tuple(math.prod(max(extent, 1) for extent in shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape of shapes that broadcast, which NumPy limits to 32 dimensions.

    Raises
    ------
    ValueError
        If extents differ.
    """
    result = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis, extent in enumerate(shape, len(result) - len(shape)):
            if extent != 1 and result[axis] not in (1, extent):
                raise ValueError(f"extents {result[axis]} and {extent} differ")
            result[axis] = extent if extent != 1 else result[axis]
    return tuple(result)


def layout_name(a: StridedMatrix, b: StridedMatrix) -> str:
    """Return the layouts of A and B: nn, nt, tn or tt.

    ``n`` is row-major, ``t`` column-major; a matrix that is neither is classified by its smaller stride.
    """
    return "".join("n" if abs(x.col_stride) <= abs(x.row_stride) or x.is_row_major else "t" for x in (a, b))
