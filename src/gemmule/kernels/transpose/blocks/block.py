"""Blocks of several axes: their runs in source and target, accesses to them, and places in shared memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gemmule.core.dtype import opaque_dtype
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.transpose.banks import most_words_of_a_bank
from gemmule.kernels.transpose.rows.runs import unit_of_rows
from gemmule.kernels.transpose.tile_config import LINE, MAX_SHARED, WORD

#: Axes of a problem that a launch covers, and those along which a block has more than one element.
AXES, BLOCK_AXES = 8, 5
# Pitches that are tried along an axis: accesses beyond the elements of a smaller axis.
_PITCHES = 17
# Skews that are tried.
_SKEWS = 4
# Share of an axis that its padding takes at most, but for a single access.
_PADDED = 4

#: Extents of blocks, those of one in each row; or a number of each.
Extents: TypeAlias = npt.NDArray[np.int64]


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
    """Return the accesses of so many bytes of a thread that moves `held` bytes, at most; shorter ones are as words."""
    return held // max(nbytes, WORD)


def stages_of(nbytes: int) -> int:
    """Return the blocks in shared memory, where accesses to the source are of so many bytes."""
    return 3 if nbytes >= WORD else 2


@functools.lru_cache(maxsize=64)
def axes_of(problem: TransposeProblem) -> tuple[Axis, ...]:
    """Return the axes of more than one element in the target's order."""
    source, target = problem.source, problem.target
    extents = (problem.cols, problem.rows, *reversed(problem.batch))
    sources = (source.col_stride, source.row_stride, *reversed(source.batch_strides))
    targets = (target.col_stride, target.row_stride, *reversed(target.batch_strides))
    found = [Axis(*one) for one in zip(extents, sources, targets, strict=True) if one[0] > 1]
    return tuple(sorted(found, key=lambda axis: abs(axis.target)))


@functools.lru_cache(maxsize=64)
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
    """Source or target of a problem: its axes' strides, their order, and its memory's alignment."""

    strides: tuple[int, ...]
    order: tuple[int, ...]
    alignment: int

    @property
    def gap(self) -> int:
        """Return the least stride if no elements are contiguous, else 1."""
        return max(self.strides[self.order[0]], 1) if self.order else 1

    def span(self, extents: Sequence[int]) -> int:
        """Return the elements between the lowest and the highest address of a block."""
        return sum(abs(stride) * (extent - 1) for stride, extent in zip(self.strides, extents, strict=True))


@functools.lru_cache(maxsize=64)
def sides_of(problem: TransposeProblem) -> tuple[Side, Side]:
    """Return the source and the target of a problem."""
    axes = axes_of(problem)

    def side(name: str) -> Side:
        strides = tuple(getattr(axis, name) for axis in axes)
        order = tuple(sorted(range(len(axes)), key=lambda number: abs(strides[number])))
        return Side(strides, order, getattr(problem, name).alignment)

    return side("source"), side("target")


def runs_of(axes: Sequence[Axis], extents: Extents, side: Side, item: int) -> tuple[Extents, Extents]:
    """Return the contiguous elements of blocks of each extents on a side, and the bytes that such runs are aligned to.

    Bytes are the largest power of 2 that divides the distances between all runs. Strided elements are runs with gaps:
    aligned as one of them.
    """
    # Axes that follow one another without gaps where blocks hold all of those before; elements of the latter.
    gap = side.gap
    chain, before = [], [gap]
    for number in side.order:
        if side.strides[number] != before[-1]:
            break
        chain.append(number)
        before.append(before[-1] * axes[number].extent)
    beyond = [0]
    for number in side.order[::-1]:
        beyond.append(beyond[-1] | side.strides[number])
    if not chain:
        aligned = lowest_bit(side.alignment | item * beyond[-1])
        return np.ones(len(extents), np.int64), np.full(len(extents), aligned)
    parts, whole = extents[:, chain], np.array([axes[number].extent for number in chain])
    is_part = parts < whole
    is_part[:, -1] = True
    last = is_part.argmax(axis=1)
    part, stride = parts[np.arange(len(parts)), last], np.array(before)[last]
    left = whole[last] - part
    if gap > 1:
        return stride * part // gap, np.full(len(extents), item)
    steps = np.array(beyond[::-1])[last + 1] | np.where(left > 0, stride * (part | left), 0)
    return stride * part, lowest_bit(side.alignment | item * steps)


def lowest_bit(number: Any) -> Any:
    """Return the largest power of 2 that divides a number, or each of many."""
    return number & -number


class Places(NamedTuple):
    """Layout of a block in shared memory, in elements."""

    pitches: tuple[int, ...]  #: From an element to the next along each inner axis, in the target's order.
    skew: int  #: Skew of each vector of the target along the first of them.

    def of(self, coordinates: Any, vector: int) -> Any:
        """Return the places of elements with such coordinates along the inner axes, a row for each axis."""
        found = np.array(self.pitches, np.int64) @ coordinates
        return found + self.skew * (coordinates[0] // vector) if self.skew else found


@functools.lru_cache(maxsize=256)
def places_of(block: Block, itemsize: int) -> Places:
    """Return the places of a block's elements.

    Elements are in the source's order. Along each axis that lanes of a warp read, the pitch is chosen for the fewest
    bank conflicts. Lanes whose vectors are contiguous along the target's first axis are ``vector * pitch`` elements
    apart, which no pitch makes an odd number of words: such vectors have a skew too.
    """
    lanes, vector = _lanes(block, itemsize), block.vectors[1]
    pitches = np.zeros(len(block.inner), np.int64)
    # Accesses to the source are written as they are.
    unit = max(WORD // itemsize, block.vectors[0])
    # The vectors before those of each lane along the target's first axis.
    vectors = lanes[:1] // vector
    size, skew = 1, 0
    # Elements of a stage at most, and of the axes that follow.
    most_elements = MAX_SHARED // stages_of(block.vectors[0] * itemsize) // itemsize - VECTOR_BYTES // itemsize
    rest = math.prod(block.extents)
    for number in block.read:
        place, extent = block.inner.index(number), block.extents[number]
        most = size + min(size // _PADDED + unit, (_PITCHES - 1) * unit)
        tried, skews = np.arange(size, most + 1, unit), np.arange(_SKEWS) * unit
        if size % unit or number == block.read[0] or not lanes[place].any():
            tried, skews = tried[:1], skews[:1]
        elif place or vector == 1:
            skews = skews[:1]
        # The first without conflicts, else that with the fewest.
        steps = tried[:, None] * lanes[place] + (skew + skews[:, None, None]) * vectors
        conflicts = most_words_of_a_bank((pitches @ lanes + steps) * itemsize)
        rest //= extent
        sizes = tried * extent + skews[:, None] * ((extent - 1) // vector)
        # Blocks that do not fit are not chosen.
        conflicts += LINE * (sizes * rest > most_elements)
        which, best = np.unravel_index(conflicts.argmin(), conflicts.shape)
        pitches[place], size = tried[best], int(sizes[which, best])
        if place == 0:
            skew = int(skews[which])
    return Places(tuple(pitches.tolist()), skew)


def conflicts_of(block: Block, itemsize: int) -> int:
    """Return the words of a bank that a warp reads at once."""
    found = places_of(block, itemsize).of(_lanes(block, itemsize), block.vectors[1])
    return int(most_words_of_a_bank(found * itemsize))


def block_bytes(block: Block, itemsize: int) -> int:
    """Return the shared memory that a block takes."""
    last = np.array([block.extents[number] - 1 for number in block.inner])
    return itemsize * (1 + int(places_of(block, itemsize).of(last, block.vectors[1])))


def stage_bytes(block: Block, itemsize: int) -> int:
    """Return the bytes from a block in shared memory to the next."""
    return -(-block_bytes(block, itemsize) // VECTOR_BYTES) * VECTOR_BYTES


def _lanes(block: Block, itemsize: int) -> Extents:
    """Return the coordinates, along each inner axis, of the first elements of a warp's first accesses to the target.

    They are of as many lanes as read from shared memory at once.
    """
    rest = np.arange(min(LINE // max(itemsize, WORD), block.accesses[1])) * block.vectors[1]
    found = np.zeros((len(block.inner), len(rest)), np.int64)
    for place, number in enumerate(block.inner):
        rest, found[place] = np.divmod(rest, block.extents[number])
    return found
