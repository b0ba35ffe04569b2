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
from gemmule.kernels.transpose.blocks.block import Axis, Extents, Side, axes_of, in_units, sides_of
from gemmule.kernels.transpose.blocks.block_choice import SHARED, tried_blocks
from gemmule.kernels.transpose.tile_config import LINE, SECTOR, WARP, WORD, most_words_of_a_bank

#: Bytes of a table's entry: a run's offset in device memory, and its place in shared memory.
ENTRY = 8
# Pitches that are tried along an axis.
_PITCHES = 8
# Microseconds of an H200: of a launch, of a byte that is read or written, of an instruction of a warp, and of words
# that it reads from shared memory.
_LAUNCH, _BYTE, _INSTRUCTION, _WAVEFRONT = 1.9, 0.245e-6, 1.8e-6, 6.0e-6
# Instructions of a warp: for a run of the source, a word of a run, the ends of runs, a class of runs, and a block.
_READ, _WRITE, _ENDS, _CLASS, _BLOCK = 12, {1: 20, 2: 14}, 25, 30, 130


class WordBlock(NamedTuple):
    """A block that a CTA moves by the words that hold its runs."""

    axes: tuple[Axis, ...]  #: All axes, in the target's order.
    extents: tuple[int, ...]  #: Elements of a block along each.
    source: tuple[int, ...]  #: Numbers of the axes of a run of the source, the first one fastest.
    target: tuple[int, ...]  #: The same of a run of the target.

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the blocks along each axis; the last one begins earlier where extents are no multiples."""
        return tuple(-(-axis.extent // extent) for axis, extent in zip(self.axes, self.extents, strict=True))

    @property
    def inner(self) -> tuple[int, ...]:
        """Return the numbers of the axes with more than one element, in the target's order."""
        return tuple(number for number, extent in enumerate(self.extents) if extent > 1)

    def run(self, axes: tuple[int, ...]) -> int:
        """Return the elements of a run."""
        return math.prod(self.extents[number] for number in axes)

    def others(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the axes of a block that a run lacks."""
        return tuple(number for number in self.inner if number not in axes)


def words_of(run: Any, itemsize: int) -> Any:
    """Return the aligned words that hold so many elements, wherever they begin; of each number of many."""
    return (run * itemsize + 2 * WORD - 1 - itemsize) // WORD


@functools.lru_cache(maxsize=256)
def word_block(problem: TransposeProblem, threads: int, most_bytes: int) -> tuple[WordBlock, float] | None:
    """Return the block of predicted least time, and its microseconds on an H200; None if runs are short."""
    problem = in_units(problem)
    axes, item = axes_of(problem), problem.itemsize
    tried = tried_blocks(problem, most_bytes)
    every = math.prod(axis.extent for axis in axes)
    bytes_us = np.full(len(tried.sizes), 2 * _BYTE * every * item)
    moved = tried.blocks * tried.sizes, np.full_like(tried.sizes, every)
    for (run, aligned), shared, count in zip(tried.runs, SHARED, moved, strict=True):
        rates = [rate * np.maximum(width - aligned, 0) for width, rate in shared.items()]
        bytes_us += count / run * np.sum(rates, axis=0)
    source, target = sides_of(problem)
    source_run, target_run = tried.runs[0][0], target_runs(axes, tried.extents, target, threads * WORD // item)
    words, classes, warps = words_of(target_run, item), WORD // item, threads // WARP
    abreast = np.maximum(threads // words, 1)
    passes = classes * -(-(tried.sizes // target_run) // (classes * abreast))
    ends = -(-2 * (tried.sizes // target_run) // threads)
    of_warp = _WRITE[item] * passes + _ENDS * ends + _CLASS * classes + _BLOCK
    issued = tried.blocks * (_READ * (tried.sizes // source_run) + warps * of_warp)
    times = np.hypot(bytes_us, _INSTRUCTION * issued)
    is_short = np.minimum(source_run, target_run) * item < SECTOR
    times[is_short | (tried.sizes // source_run > threads) | (words > threads)] = math.inf
    best = int(times.argmin())
    if not math.isfinite(times[best]):
        return None
    extents, runs = tuple(tried.extents[best].tolist()), list[tuple[int, ...]]()
    for side, elements in ((source, source_run), (target, target_run)):
        order, left = [one for one in side.order if extents[one] > 1], math.prod(extents) // int(elements[best])
        while left > 1:
            left //= extents[order.pop()]
        runs.append(tuple(order))
    block = WordBlock(axes, extents, *runs)
    read = int(tried.blocks[best] * warps * passes[best]) * classes * conflicts_of(block, item)
    return block, _LAUNCH + max(float(times[best]), math.hypot(bytes_us[best], _WAVEFRONT * read))


def target_runs(axes: Sequence[Axis], extents: Extents, side: Side, most: int) -> Extents:
    """Return the contiguous elements, along whole axes of blocks, whose words are not more than threads.

    Runs of `most` elements that begin anywhere would have a word more.
    """
    run, is_whole = np.ones(len(extents), np.int64), np.ones(len(extents), np.bool_)
    size = 1
    for number in side.order:
        if side.strides[number] != size:
            break
        is_whole &= run * extents[:, number] < most
        run = np.where(is_whole, run * extents[:, number], run)
        is_whole &= extents[:, number] == axes[number].extent
        size *= axes[number].extent
    return run


@functools.lru_cache(maxsize=256)
def pitches_of(block: WordBlock, itemsize: int) -> tuple[int, ...]:
    """Return the strides in shared memory of a block's inner axes, in the target's order, in elements.

    Along an axis that runs of the source lack, elements are as far apart modulo a vector as in the source: all runs
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
    for number in sorted(block.others(block.source), key=lambda one: block.axes[one].source):
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
    for number in (*block.target, *block.others(block.target)):
        rest, found[block.inner.index(number)] = np.divmod(rest, block.extents[number])
    return found


def stage_bytes(block: WordBlock, itemsize: int) -> int:
    """Return the bytes from a block in shared memory to the next, with the vectors that hold the last run."""
    pitches = zip(block.inner, pitches_of(block, itemsize), strict=True)
    size = 1 + sum((block.extents[number] - 1) * pitch for number, pitch in pitches)
    return -(-size * itemsize // VECTOR_BYTES) * VECTOR_BYTES + 2 * VECTOR_BYTES


def table_bytes(block: WordBlock) -> int:
    """Return the bytes of the table of runs of the target."""
    size = math.prod(block.extents)
    size = (ENTRY + WORD) * (size // block.run(block.target)) + ENTRY * (size // block.run(block.source))
    return -(-size // VECTOR_BYTES) * VECTOR_BYTES


def classes_of(block: WordBlock, itemsize: int) -> tuple[int, ...]:
    """Return the numbers of the first runs of each class in the table, four classes in all, and the end.

    The runs of a class have the same offset in the target modulo a word.
    """
    offsets = np.zeros(1, np.int64)
    for number in block.others(block.target):
        offsets = (offsets[:, None] + np.arange(block.extents[number]) * block.axes[number].target).ravel()
    counts = np.bincount(offsets % (WORD // itemsize), minlength=WORD)
    return (0, *np.cumsum(counts).tolist())
