"""Limits that transposes share: sizes of elements, strides, alignment of rows, sizes of small matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES

#: Sizes of elements that tiles of vectors, and the reference, move.
ITEMSIZES = (1, 2, 4, 8, 16)
# Narrower matrices leave most of a CTA idle.
_MIN_EXTENT = 16


def why_not_itemsize(problem: TransposeProblem, itemsizes: Iterable[int]) -> str | None:
    """Return why elements of this size are not supported, or None where they are."""
    if problem.itemsize in itemsizes:
        return None
    *sizes, last = itemsizes
    known = f"{', '.join(map(str, sizes))} or {last}"
    return f"elements of {problem.itemsize} bytes are not supported; the kernel moves {known} bytes"


def why_not_contiguous(problem: TransposeProblem) -> str | None:
    """Return the strides of the source's columns and the target's rows, or None where their elements are contiguous."""
    source, target = problem.source.row_stride, problem.target.col_stride
    if (source, target) == (1, 1):
        return None
    return f"elements have a stride of {source} in the source and {target} in the target; the kernel takes 1 only"


def why_not_small(problem: TransposeProblem, largest: Mapping[int, int]) -> str | None:
    """Return why a kernel for small matrices does not take these, or None where it does.

    Parameters
    ----------
    problem : TransposeProblem
        The matrices.
    largest : mapping of int to int
        Bytes of all matrices of a batch at most, by the bytes of an element; other elements are not supported.
    """
    if reason := why_not_itemsize(problem, largest) or why_not_contiguous(problem):
        return reason
    size, most = problem.bytes_min // 2, largest[problem.itemsize]
    if size > most:
        return f"matrices of {size} bytes, more than {most}, are moved in tiles"
    if math.prod(problem.batch[1:]) > 1:
        return f"a batch of {problem.batch} has more than one dimension"
    return None


def why_not_small_unaligned(problem: TransposeProblem, largest: Mapping[int, int]) -> str | None:
    """Return why a kernel for small matrices with unaligned rows does not take these; `largest` as `why_not_small`."""
    if reason := why_not_small(problem, largest):
        return reason
    if rows_are_aligned(problem):
        return f"every row is aligned to {VECTOR_BYTES} bytes: whole vectors are faster"
    if min(problem.rows, problem.cols) < _MIN_EXTENT:
        return f"a matrix of {problem.cols} rows of {problem.rows} elements is narrower than {_MIN_EXTENT}"
    return None


def why_not_separate(problem: TransposeProblem, word: int) -> str | None:
    """Return why words at both ends of the source's memory hold elements of many rows, or None where they do not."""
    stride = abs(problem.source.col_stride) * problem.itemsize
    if problem.cols <= 1 or problem.itemsize >= word or stride >= word:
        return None
    return f"the row stride of the source is {stride} bytes; the kernel takes {word} or more"


def rows_are_aligned(problem: TransposeProblem, size: int = VECTOR_BYTES) -> bool:
    """Return whether every row of both matrices begins and ends at a multiple of `size` bytes."""
    source = problem.source
    return _lines_are_aligned(
        source, (source.cols, source.rows, source.col_stride), problem.batch, size
    ) and target_is_aligned(problem, size)


def target_is_aligned(problem: TransposeProblem, size: int) -> bool:
    """Return whether every row of the target begins and ends at a multiple of `size` bytes."""
    return is_aligned(problem.target, problem.batch, size)


def is_aligned(matrix: StridedMatrix, batch: tuple[int, ...], size: int) -> bool:
    """Return whether every row of a matrix begins and ends at a multiple of `size` bytes."""
    return _lines_are_aligned(matrix, (matrix.rows, matrix.cols, matrix.row_stride), batch, size)


def _lines_are_aligned(matrix: StridedMatrix, lines: tuple[int, int, int], batch: tuple[int, ...], size: int) -> bool:
    """Return `is_aligned` of so many lines of so many elements, with such a stride."""
    count, length, stride = lines
    known = math.gcd(length, stride) if count > 1 else length
    if batch:
        known = math.gcd(known, *(x for x, extent in zip(matrix.batch_strides, batch, strict=True) if extent > 1))
    return math.gcd(matrix.alignment, known * matrix.dtype.itemsize) % size == 0
