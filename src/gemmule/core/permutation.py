"""Permutations of axes as batched 2-D transposes."""

from __future__ import annotations

from .dtype import opaque_dtype
from .layout import StridedMatrix
from .problem import TransposeProblem, collapse_batch


def transpose_problem(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    target: tuple[int, ...],
    itemsize: int,
    alignments: tuple[int, int] | None = None,
    *,
    in_place: bool = False,
) -> TransposeProblem:
    """Return the batched 2-D transpose of a copy between two arrays of one shape and any strides.

    Parameters
    ----------
    shape : tuple of int
        Extents, the same for both arrays.
    source, target : tuple of int
        Strides of the two arrays in elements.
    itemsize : int
        Bytes of an element: 1, 2, 4, 8 or 16; 16 are moved in two halves unless both arrays are aligned to 16.
    alignments : tuple of int, optional
        Alignments in bytes of the two arrays' first elements; by default the least that elements allow.
    in_place : bool
        Whether the two arrays are the same memory.

    Returns
    -------
    TransposeProblem
        Its columns are contiguous in `target`, its rows in `source`.

    Raises
    ------
    DTypeError
        If elements have another size.
    """
    aligned = alignments or (min(itemsize, 8),) * 2
    if itemsize == 16 and any(alignment % 16 for alignment in aligned):
        shape, source, target = (*shape, 2), (*(2 * s for s in source), 1), (*(2 * s for s in target), 1)
        itemsize = 8
    dtype = opaque_dtype(itemsize)
    extents, (sources, targets) = collapse_batch(shape, [source, target])
    axes = list(range(len(extents)))
    col = min(axes, key=lambda axis: (abs(targets[axis]), -axis), default=None)
    rest = [axis for axis in axes if axis != col]
    row = min(rest, key=lambda axis: (abs(sources[axis]), -axis), default=None)
    batch = [axis for axis in rest if axis != row]

    def matrix(strides: tuple[int, ...], alignment: int) -> StridedMatrix:
        return StridedMatrix(
            dtype,
            rows=1 if row is None else extents[row],
            cols=1 if col is None else extents[col],
            row_stride=0 if row is None else strides[row],
            col_stride=0 if col is None else strides[col],
            batch_strides=tuple(strides[axis] for axis in batch),
            alignment=alignment,
        )

    first, second = (matrix(*pair) for pair in zip((sources, targets), aligned, strict=True))
    outer = tuple(extents[axis] for axis in batch)
    return TransposeProblem(first.rows, first.cols, outer, first, second, in_place)
