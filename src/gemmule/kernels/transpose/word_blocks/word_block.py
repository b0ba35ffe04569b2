"""Blocks whose runs begin anywhere: their places in shared memory, and their extents by predicted time."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.transpose.banks import most_words_of_a_bank
from gemmule.kernels.transpose.blocks.block import Axis, Extents, Side, axes_of, in_units, sides_of
from gemmule.kernels.transpose.blocks.block_choice import tried_blocks
from gemmule.kernels.transpose.tile_config import LINE, SECTOR, WARP, WORD

#: Axes along which a block has more than one element.
RUN_AXES = 4
#: Bytes of a table's entry: a run's offset in device memory, and its place in shared memory.
ENTRY = 8
# Pitches that are tried along an axis.
_PITCHES = 8
# Microseconds of an H200, fitted to 34 permutations: of a launch, of a run of the target that a CTA looks up, and of a
# byte that is read or written.
_LAUNCH, _ENTRY_US, _BYTE = 3.0, 1e-3, 0.26e-6
# A byte of two sectors that a run of the source shares with others; the same for a run of the target.
_SHARED = 0.28e-6, 1.07e-6
# A word of a bank that a warp reads, a warp for a block, and a warp's word of a run in blocks at the edge.
_WAVEFRONT, _WARP, _EDGE = 3.0e-6, 0.13e-3, 32e-6
# Bytes of runs of the target of which the ends take longer than predicted, and a factor.
_SHORT_RUN, _OF_SHORT = 2 * SECTOR, 1.25


class WordBlock(NamedTuple):
    """A block that a CTA moves by the words that hold its runs."""

    axes: tuple[Axis, ...]  #: All axes, in the target's order.
    extents: tuple[int, ...]  #: Elements of a block along each.
    source: tuple[int, ...]  #: Numbers of the axes of a run of the source, the first one fastest.
    target: tuple[int, ...]  #: The same of a run of the target.
    part: int  #: Elements of a run of the target along the last of its axes: a divisor of the block's.

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the blocks along each axis; the last one begins earlier where extents are no multiples."""
        return tuple(-(-axis.extent // extent) for axis, extent in zip(self.axes, self.extents, strict=True))

    @property
    def inner(self) -> tuple[int, ...]:
        """Return the numbers of the axes with more than one element, in the target's order."""
        return tuple(number for number, extent in enumerate(self.extents) if extent > 1)

    @property
    def source_run(self) -> int:
        """Return the elements of a run of the source."""
        return math.prod(self.extents[number] for number in self.source)

    @property
    def target_run(self) -> int:
        """Return the elements of a run of the target."""
        return math.prod(self.extents[number] for number in self.target[:-1]) * self.part

    @property
    def source_others(self) -> tuple[tuple[int, int, int], ...]:
        """Return the axes that a run of the source lacks: number, extent, and elements from one to the next."""
        return tuple((number, self.extents[number], 1) for number in self.inner if number not in self.source)

    @property
    def target_others(self) -> tuple[tuple[int, int, int], ...]:
        """Return the same of a run of the target, first the other parts of its last axis."""
        last = self.target[-1]
        parts = self.extents[last] // self.part
        others = tuple((number, self.extents[number], 1) for number in self.inner if number not in self.target)
        return ((last, parts, self.part), *others) if parts > 1 else others


def words_of(run: Any, itemsize: int) -> Any:
    """Return the aligned words that hold so many elements, wherever they begin; of each number of many."""
    return (run * itemsize + 2 * WORD - 1 - itemsize) // WORD


def least_us(problem: TransposeProblem) -> float:
    """Return about the microseconds in which an H200 moves blocks at least: a launch, and the bytes."""
    return _LAUNCH + _BYTE * problem.bytes_min


class _WordTimes(NamedTuple):
    """All compared blocks: runs of source and target, passes over a class, and predicted microseconds."""

    source_run: Extents
    target_run: Extents
    passes: Extents
    bytes_us: npt.NDArray[np.float64]
    times: npt.NDArray[np.float64]  #: Infinite where runs are short.


# Cached, as all configs choose from the same blocks.
@functools.lru_cache(maxsize=16)
def _times(problem: TransposeProblem, threads: int) -> _WordTimes:
    axes, item = axes_of(problem), problem.itemsize
    tried = tried_blocks(problem)
    every = math.prod(axis.extent for axis in axes)
    bytes_us = np.full(len(tried.sizes), 2 * _BYTE * every * item)
    moved = tried.blocks * tried.sizes, np.full_like(tried.sizes, every)
    for (run, aligned), rate, count in zip(tried.runs, _SHARED, moved, strict=True):
        bytes_us += count / run * rate * np.maximum(2 * SECTOR - aligned, 0)
    _, target = sides_of(problem)
    source_run, target_run = tried.runs[0][0], target_runs(axes, tried.extents, target, threads * WORD // item)
    words, classes, warps = words_of(target_run, item), WORD // item, threads // WARP
    abreast, targets = np.maximum(threads // words, 1), tried.sizes // target_run
    passes = classes * -(-targets // (classes * abreast))
    times = _ENTRY_US * targets + np.hypot(bytes_us, warps * tried.blocks * _block_us(item, passes, 1))
    is_refused = np.minimum(source_run, target_run) * item < SECTOR
    is_refused |= (tried.extents > 1).sum(axis=1) > RUN_AXES
    times[is_refused | (tried.sizes // source_run > threads) | (words > threads)] = math.inf
    return _WordTimes(source_run, target_run, passes, bytes_us, times)


@functools.lru_cache(maxsize=256)
def word_block(problem: TransposeProblem, threads: int, most_bytes: int) -> tuple[WordBlock, float] | None:
    """Return the block of predicted least time, and its microseconds on an H200; None if runs are short."""
    problem = in_units(problem)
    axes, item, tried, found = axes_of(problem), problem.itemsize, tried_blocks(problem), _times(problem, threads)
    times = np.where(tried.sizes * item > most_bytes, math.inf, found.times)
    best = int(times.argmin())
    if not math.isfinite(times[best]):
        return None
    extents = tuple(tried.extents[best].tolist())
    source, target = sides_of(problem)
    source_axes, _ = _axes_of_run(source, extents, int(found.source_run[best]))
    target_axes, part = _axes_of_run(target, extents, int(found.target_run[best]))
    block = WordBlock(axes, extents, source_axes, target_axes, part)
    count = int(tried.blocks[best])
    whole = math.prod(axis.extent // extent for axis, extent in zip(axes, extents, strict=True))
    passes, targets = int(found.passes[best]), math.prod(extents) // block.target_run
    of_warps = count * _block_us(item, passes, conflicts_of(block, item)) + (count - whole) * passes * _EDGE
    moved = math.hypot(float(found.bytes_us[best]), threads // WARP * of_warps)
    factor = _OF_SHORT if block.target_run * item < _SHORT_RUN else 1.0
    return block, _LAUNCH + _ENTRY_US * targets + factor * moved


def _block_us(item: int, passes: Any, conflicts: int) -> Any:
    """Return about the microseconds of a warp for a block, of each number of many passes over the words of a class."""
    return _WARP + _WAVEFRONT * (WORD // item * conflicts) * passes


def _axes_of_run(side: Side, extents: Sequence[int], run: int) -> tuple[tuple[int, ...], int]:
    """Return the axes of a run of so many elements, and its elements along the last one."""
    found: list[int] = []
    for number in side.order:
        if extents[number] > 1:
            found.append(number)
            if run <= extents[number]:
                break
            run //= extents[number]
    return tuple(found), run


def target_runs(axes: Sequence[Axis], extents: Extents, side: Side, most: int) -> Extents:
    """Return the contiguous elements of blocks, fewer than `most`: of whole axes, and a divisor of the next one's."""
    run, is_whole = np.ones(len(extents), np.int64), np.ones(len(extents), np.bool_)
    size = 1
    for number in side.order:
        if side.strides[number] != size:
            break
        part = extents[:, number]
        is_long = is_whole & (run * part >= most)
        if is_long.any():
            pairs, which = np.unique((part[is_long], run[is_long]), axis=1, return_inverse=True)
            divisors = [_largest_divisor(one, (most - 1) // before) for one, before in pairs.T.tolist()]
            run[is_long] *= np.array(divisors)[which.ravel()]
        is_whole &= ~is_long
        run = np.where(is_whole, run * part, run)
        is_whole &= part == axes[number].extent
        size *= axes[number].extent
    return run


@functools.lru_cache(maxsize=4096)
def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not larger than another."""
    return next(one for one in range(min(number, most), 0, -1) if number % one == 0)


@functools.lru_cache(maxsize=256)
def pitches_of(block: WordBlock, itemsize: int) -> tuple[int, ...]:
    """Return the strides in shared memory of a block's inner axes, in the target's order, in elements.

    Along an axis that runs of the source lack, strides equal the source's modulo a vector: all runs
    begin within vectors as they do there.
    """
    vector = VECTOR_BYTES // itemsize
    lanes = _lanes(block, itemsize)
    pitches = np.zeros(len(block.inner), np.int64)
    size = 1
    for number in block.source:
        pitches[block.inner.index(number)] = size
        size *= block.extents[number]
    # The vectors that hold a run hold nothing of another.
    size += vector - 1
    for number in sorted((one for one, _, _ in block.source_others), key=lambda one: block.axes[one].source):
        place = block.inner.index(number)
        size += (block.axes[number].source - size) % vector
        tried = np.arange(size, size + _PITCHES * vector, vector)
        conflicts = most_words_of_a_bank((pitches @ lanes + tried[:, None] * lanes[place]) * itemsize)
        pitches[place] = tried[conflicts.argmin()]
        size = int(pitches[place]) * block.extents[number]
    return tuple(pitches.tolist())


def conflicts_of(block: WordBlock, itemsize: int) -> int:
    """Return the words of a bank that a warp reads at once."""
    pitches = np.array(pitches_of(block, itemsize), np.int64)
    return int(most_words_of_a_bank(pitches @ _lanes(block, itemsize) * itemsize))


def _lanes(block: WordBlock, itemsize: int) -> npt.NDArray[np.int64]:
    """Return the coordinates, along each inner axis, of the first elements of the words that a warp gathers."""
    rest: Extents = np.arange(LINE // WORD) * (WORD // itemsize)
    found = np.zeros((len(block.inner), len(rest)), np.int64)
    for number in (*block.target, *(one for one in block.inner if one not in block.target)):
        rest, found[block.inner.index(number)] = np.divmod(rest, block.extents[number])
    return found


def stage_bytes(block: WordBlock, itemsize: int) -> int:
    """Return the bytes from a block in shared memory to the next, with the vectors that hold the last run."""
    pitches = zip(block.inner, pitches_of(block, itemsize), strict=True)
    size = 1 + sum((block.extents[number] - 1) * pitch for number, pitch in pitches)
    return -(-size * itemsize // VECTOR_BYTES) * VECTOR_BYTES + 2 * VECTOR_BYTES


def table_bytes(block: WordBlock) -> int:
    """Return the bytes of the table of runs of the target."""
    size = (ENTRY + WORD) * math.prod(block.extents) // block.target_run
    return -(-size // VECTOR_BYTES) * VECTOR_BYTES


def classes_of(block: WordBlock, itemsize: int) -> tuple[int, ...]:
    """Return the numbers of the first runs of each class in the table, four classes in all, and the end.

    The runs of a class have the same offset in the target modulo a word.
    """
    offsets = np.zeros(1, np.int64)
    for number, extent, step in block.target_others:
        offsets = (offsets[:, None] + np.arange(extent) * step * block.axes[number].target).ravel()
    counts = np.bincount(offsets % (WORD // itemsize), minlength=WORD)
    return (0, *np.cumsum(counts).tolist())
