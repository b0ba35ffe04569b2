"""Blocks of several axes: their runs in source and target, accesses to them, and places in shared memory."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.dtype import opaque_dtype
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.transpose.rows.runs import unit_of_rows
from gemmule.kernels.transpose.tile_config import LINE, WORD, most_words_of_a_bank

#: Axes of a problem that a launch covers, and those along which a block has more than one element.
AXES, BLOCK_AXES = 8, 4
# Bytes of wide accesses to source and target, the widest first; asynchronous copies are of 4 bytes and more.
_WIDE = (16, 8, 4)
# Pitches that are tried along an axis: accesses beyond the elements of a smaller axis.
_PITCHES = 17
# Share of an axis that its padding takes at most, but for a single access.
_PADDED = 4


class Axis(NamedTuple):
    """An axis of source and target: its extent, and the strides of both in elements."""

    extent: int
    source: int
    target: int


class Block(NamedTuple):
    """A block that a CTA moves, of axes in the target's order, those of the shortest stride first."""

    axes: tuple[Axis, ...]  #: All axes.
    extents: tuple[int, ...]  #: Elements of a block along each.
    inner: tuple[int, ...]  #: Numbers of the axes with more than one, in the target's order.
    read: tuple[int, ...]  #: The same axes in the source's order.
    vectors: tuple[int, int]  #: Elements of an access to source and target.

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the blocks along each axis; the last one begins earlier where extents are no multiples."""
        return tuple(-(-axis.extent // extent) for axis, extent in zip(self.axes, self.extents, strict=True))

    @property
    def accesses(self) -> tuple[int, int]:
        """Return the accesses to the block in source and target."""
        size = math.prod(self.extents)
        return size // self.vectors[0], size // self.vectors[1]


def count_of(held: int, nbytes: int) -> int:
    """Return the accesses of so many bytes of a thread that moves `held` bytes, at most."""
    return min(16, held // nbytes)


def sizes_of(itemsize: int) -> tuple[int, ...]:
    """Return the bytes of an access, the widest first, an element last."""
    return (*(size for size in _WIDE if size > itemsize), itemsize)


def axes_of(problem: TransposeProblem) -> tuple[Axis, ...]:
    """Return the axes of more than one element in the target's order."""
    source, target = problem.source, problem.target
    extents = (problem.cols, problem.rows, *reversed(problem.batch))
    sources = (source.col_stride, source.row_stride, *reversed(source.batch_strides))
    targets = (target.col_stride, target.row_stride, *reversed(target.batch_strides))
    found = [Axis(*one) for one in zip(extents, sources, targets, strict=True) if one[0] > 1]
    return tuple(sorted(found, key=lambda axis: abs(axis.target)))


def in_units(problem: TransposeProblem) -> TransposeProblem:
    """Return the same permutation, of larger elements where rows of source and target are contiguous along one axis."""
    source, target = problem.source, problem.target
    if not source.col_stride == target.col_stride == 1 or (unit := unit_of_rows(problem)) == problem.itemsize:
        return problem
    elements = unit // problem.itemsize
    cols = problem.cols // elements

    def of_units(matrix: StridedMatrix) -> StridedMatrix:
        row, *batch = (stride // elements for stride in (matrix.row_stride, *matrix.batch_strides))
        return StridedMatrix(opaque_dtype(unit), problem.rows, cols, row, 1, tuple(batch), matrix.alignment)

    return TransposeProblem(problem.rows, cols, problem.batch, of_units(source), of_units(target))


class Side(NamedTuple):
    """Source or target of a problem: its axes' strides, their order, and the bytes of an access, the widest first."""

    strides: tuple[int, ...]
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    alignment: int

    def span(self, extents: Sequence[int]) -> int:
        """Return the elements between the lowest and the highest address of a block."""
        return sum(abs(stride) * (extent - 1) for stride, extent in zip(self.strides, extents, strict=True))


def sides_of(problem: TransposeProblem) -> tuple[Side, Side]:
    """Return the source and the target of a problem."""
    axes, item = axes_of(problem), problem.itemsize
    sizes = sizes_of(item)

    def side(name: str) -> Side:
        strides = tuple(getattr(axis, name) for axis in axes)
        order = tuple(sorted(range(len(axes)), key=lambda number: abs(strides[number])))
        return Side(strides, order, sizes, getattr(problem, name).alignment)

    return side("source"), side("target")


def run_of(axes: Sequence[Axis], extents: Sequence[int], side: Side, item: int) -> tuple[int, int]:
    """Return the contiguous elements of a block on a side, and the bytes that all such runs are aligned to."""
    known, run, held = side.alignment, 1, 0
    for number in side.order:
        if side.strides[number] != run:
            break
        run *= extents[number]
        held += 1
        if extents[number] < axes[number].extent:
            for step in (extents[number], axes[number].extent - extents[number]):
                known = math.gcd(known, item * step * side.strides[number])
            break
    for number in side.order[held:]:
        known = math.gcd(known, item * side.strides[number])
    return run, known


@functools.lru_cache(maxsize=256)
def pitches_of(block: Block, itemsize: int) -> tuple[int, ...]:
    """Return the strides in shared memory of a block's inner axes, in the target's order.

    Elements lie in the source's order. Along each axis that lanes of a warp read, the pitch is chosen for the fewest
    bank conflicts.
    """
    lanes = _lanes(block, itemsize)
    pitches = dict.fromkeys(block.inner, 0)
    size = 1
    for number in block.read:
        place = block.inner.index(number)
        # Accesses to the source are written as they are.
        unit = max(WORD // itemsize, block.vectors[0])
        most = size + min(size // _PADDED + unit, (_PITCHES - 1) * unit)
        tried: Sequence[int] = range(size, most + 1, unit)
        if size % unit or number == block.read[0] or all(lane[place] == 0 for lane in lanes):
            tried = [size]

        # The first without conflicts, else that with the fewest.
        fewest = math.inf
        for pitch in tried:
            strides = [(pitches | {number: pitch})[one] * itemsize for one in block.inner]
            if (found := _conflicts(lanes, strides)) < fewest:
                fewest, pitches[number] = found, pitch
            if fewest == 1:
                break
        size = pitches[number] * block.extents[number]
    return tuple(pitches[number] for number in block.inner)


def conflicts_of(block: Block, itemsize: int) -> int:
    """Return the words of a bank that a warp reads at once."""
    return _conflicts(_lanes(block, itemsize), [pitch * itemsize for pitch in pitches_of(block, itemsize)])


def _conflicts(lanes: Sequence[Sequence[int]], strides: Sequence[int]) -> int:
    return most_words_of_a_bank([sum(map(operator.mul, lane, strides)) for lane in lanes])


def block_bytes(block: Block, itemsize: int) -> int:
    """Return the shared memory that a block takes."""
    pitches = zip(block.inner, pitches_of(block, itemsize), strict=True)
    return itemsize * (1 + sum((block.extents[number] - 1) * pitch for number, pitch in pitches))


def stage_bytes(block: Block, itemsize: int) -> int:
    """Return the bytes from a block in shared memory to the next."""
    return -(-block_bytes(block, itemsize) // VECTOR_BYTES) * VECTOR_BYTES


def _lanes(block: Block, itemsize: int) -> list[tuple[int, ...]]:
    """Return the coordinates of the first elements of a warp's first accesses to the target, as many as meet."""
    found = []
    for lane in range(min(LINE // max(itemsize, WORD), block.accesses[1])):
        rest, place = lane * block.vectors[1], []
        for number in block.inner:
            place.append(rest % block.extents[number])
            rest //= block.extents[number]
        found.append(tuple(place))
    return found
