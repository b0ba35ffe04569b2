"""Strided matrices, and the names of their layouts."""

from __future__ import annotations

import dataclasses
import math

from .dtype import DType


@dataclasses.dataclass(frozen=True)
class StridedMatrix:
    """A matrix, or a batch of matrices, somewhere in memory.

    Attributes
    ----------
    dtype : DType
        Element type.
    rows, cols : int
        Shape of one matrix.
    row_stride, col_stride : int
        Elements from one row, or column, to the next. Zero repeats an element, negative walks backwards.
    batch_strides : tuple of int
        Elements from one matrix to the next, one entry for each batch dimension of the problem.
    alignment : int
        Bytes that the address of element (0, 0) of the first matrix is known to be a multiple of.
    """

    dtype: DType
    rows: int
    cols: int
    row_stride: int
    col_stride: int
    batch_strides: tuple[int, ...] = ()
    alignment: int = 16

    @property
    def is_row_major(self) -> bool:
        """Whether neighbours in a row are neighbours in memory."""
        return self.col_stride == 1 or self.cols <= 1

    @property
    def is_col_major(self) -> bool:
        """Whether neighbours in a column are neighbours in memory."""
        return self.row_stride == 1 or self.rows <= 1

    @property
    def lies_in_rows(self) -> bool:
        """Whether its lines of neighbours are rows: a row-major matrix, but for a single column, which is one line.

        Of a matrix and its transpose this is true of one, if it is of either and there is more than one element.
        """
        return self.is_row_major and not (self.cols <= 1 < self.rows and self.row_stride == 1)

    def distinct_bytes(self, batch: tuple[int, ...]) -> int:
        """Return the bytes of its elements over `batch`, those that a zero stride repeats counted once."""
        if not batch and self.row_stride and self.col_stride:
            return self.dtype.itemsize * self.rows * self.cols
        extents = (self.rows, self.cols, *batch)
        strides = (self.row_stride, self.col_stride, *self.batch_strides)
        own = (extent if stride else min(extent, 1) for extent, stride in zip(extents, strides, strict=True))
        return self.dtype.itemsize * math.prod(own)

    def transposed(self) -> StridedMatrix:
        """Return the same memory with rows and columns exchanged."""
        # Not by `dataclasses.replace`, which takes three times as long: choosing a kernel does this again and again.
        return StridedMatrix(
            self.dtype, self.cols, self.rows, self.col_stride, self.row_stride, self.batch_strides, self.alignment
        )


def contiguous(dtype: DType, rows: int, cols: int, batch: tuple[int, ...] = (), alignment: int = 16) -> StridedMatrix:
    """Return the row-major matrix of that shape, its batch dimensions outermost."""
    strides = compact_strides((*batch, rows, cols))
    return StridedMatrix(dtype, rows, cols, strides[-2], strides[-1], strides[:-2], alignment)


def element_alignment(itemsize: int) -> int:
    """Return the bytes that the address of an element must be a multiple of, for a GPU to read it as one number."""
    return min(itemsize, 8)


def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-ordered array of that shape."""
    return tuple(math.prod(max(extent, 1) for extent in shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to; unlike NumPy's function, for more than 32 dimensions too.

    Raises
    ------
    ValueError
        If there is none.
    """
    result = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis, extent in enumerate(shape, len(result) - len(shape)):
            if extent != 1 and result[axis] not in (1, extent):
                raise ValueError(f"extents {result[axis]} and {extent} differ")
            result[axis] = extent if extent != 1 else result[axis]
    return tuple(result)


def layout_name(a: StridedMatrix, b: StridedMatrix) -> str:
    """Name the layouts of A and B as BLAS would see row-major storage: nn, nt, tn or tt.

    ``n`` is row-major; ``t`` is column-major. A matrix that is neither is named by its smaller stride.
    """
    return "".join("n" if abs(x.col_stride) <= abs(x.row_stride) or x.is_row_major else "t" for x in (a, b))
