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
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.banks import most_words_of_a_bank
from gemmule.kernels.transpose.blocks.block import Axis, Extents, Side, axes_of, in_units, sides_of
from gemmule.kernels.transpose.blocks.block_choice import TriedBlocks, tried_blocks
from gemmule.kernels.transpose.tile_config import LINE, SECTOR, WARP, WORD

#: Axes along which a block has more than one element.
RUN_AXES = 4
#: Bytes of a table's entry: a run's offset in device memory, and its place in shared memory.
ENTRY = 8
#: Words of a run of the target that a thread has: the kernel is compiled for so many.
CHUNKS = (1, 2, 4)
# Elements along an axis that blocks have at least, for each that they share.
_LEAST_SHARES = 4
# Pitches that are tried along an axis.
_PITCHES = 8
# Bytes of blocks that take longer than predicted.
_SMALL_BLOCK = 6000
# Microseconds of an H200, fitted to 144 times of 60 permutations: of a launch, of a run that a CTA looks up, and of a
# byte that is read or written.
_LAUNCH, _ENTRY_US, _BYTE = 2.36, 2e-3, 0.268e-6
# Of a byte of two sectors that a run of the source shares with others; the same of a run of the target.
_SHARED = 0.48e-6, 0.76e-6
# Of an SM for the blocks that its CTAs move at once, of a warp for one; for its words of a run, for each word of a bank
# that it reads, more where runs end with sectors, and where it has several of a run.
_ROUND, _WARP = 0.19, 1.5e-3
_WORD_US, _WAVEFRONT, _TO_SECTOR, _OF_CHUNKS = 1.7e-3, 0.334e-3, 1.8e-3, 0.55e-3


class WordCtas(NamedTuple):
    """CTAs that move blocks by words."""

    threads: int  #: Threads of each.
    most_bytes: int  #: Bytes of a block, at most.
    resident: int  #: CTAs of an SM.


class WordBlock(NamedTuple):
    """A block that a CTA moves by the words that hold its runs."""

    axes: tuple[Axis, ...]  #: All axes, in the target's order.
    extents: tuple[int, ...]  #: Elements of a block along each.
    source: tuple[int, ...]  #: Numbers of the axes of a run of the source, the first one fastest.
    target: tuple[int, ...]  #: The same of a run of the target.
    #: Elements along the last of a target run's axes that the next block has too, for the sector in which runs end.
    shared: int

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the elements from a block to the next along each axis."""
        return tuple(extent - self.shared * (number == self.target[-1]) for number, extent in enumerate(self.extents))

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the blocks along each axis; the last one begins earlier where extents are no multiples."""
        sizes = zip(self.axes, self.extents, self.steps, strict=True)
        return tuple(-(-(axis.extent - extent) // step) + 1 for axis, extent, step in sizes)

    @property
    def earlier(self) -> tuple[int, ...]:
        """Return the elements that the last block along each axis begins earlier."""
        sizes = zip(self.axes, self.extents, self.steps, self.counts, strict=True)
        return tuple((count - 1) * step + extent - axis.extent for axis, extent, step, count in sizes)

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
        return math.prod(self.extents[number] for number in self.target)

    @property
    def source_others(self) -> tuple[int, ...]:
        """Return the numbers of the axes that a run of the source lacks."""
        return tuple(number for number in self.inner if number not in self.source)

    @property
    def target_others(self) -> tuple[int, ...]:
        """Return the same of a run of the target."""
        return tuple(number for number in self.inner if number not in self.target)


def words_of(run: Any, itemsize: int) -> Any:
    """Return the aligned words that hold so many elements, wherever they begin; of each number of many."""
    return (run * itemsize + 2 * WORD - 1 - itemsize) // WORD


def chunks_of(block: WordBlock, itemsize: int, threads: int) -> int:
    """Return the words of a run of the target that each of so many threads has."""
    return next(count for count in CHUNKS if count * threads >= words_of(block.target_run, itemsize))


def least_us(problem: TransposeProblem) -> float:
    """Return about the microseconds in which an H200 moves blocks at least: a launch, and the bytes."""
    return _LAUNCH + _BYTE * problem.bytes_min


class _WordRuns(NamedTuple):
    """Of all blocks that are compared: their runs, words of a thread, and the microseconds of all bytes."""

    source_run: Extents
    target_run: Extents
    shared: Extents  #: As of WordBlock.
    blocks: Extents  #: Blocks of a problem.
    passes: Extents  #: Words that a thread writes of a block.
    chunks: Extents  #: Those of a run.
    bytes_us: npt.NDArray[np.float64]
    is_refused: npt.NDArray[np.bool_]


# Cached, as all configs choose from the same blocks.
@functools.lru_cache(maxsize=16)
def _runs(problem: TransposeProblem, threads: int) -> _WordRuns:
    axes, item, tried = axes_of(problem), problem.itemsize, tried_blocks(problem)
    every = math.prod(axis.extent for axis in axes)
    (source_run, _), (_, aligned) = tried.runs
    ahead = np.where(aligned % SECTOR > 0, SECTOR // item - 1, 0)
    most = CHUNKS[-1] * threads * WORD // item - WORD
    target_run, shared, blocks = _target_runs(axes, tried, sides_of(problem)[1], (ahead, most))
    bytes_us = _BYTE * item * (every + blocks * tried.sizes).astype(np.float64)
    # Runs that end with a sector share it only where their axes end.
    edges = blocks * tried.sizes / source_run, np.where(shared > 0, 0.0, every / target_run)
    for (_, aligned), rate, count in zip(tried.runs, _SHARED, edges, strict=True):
        bytes_us += count * rate * np.maximum(2 * SECTOR - aligned, 0)
    words, classes, targets = words_of(target_run, item), WORD // item, tried.sizes // target_run
    chunks, abreast = -(-words // threads), np.maximum(threads // words, 1)
    passes = np.where(chunks > 1, targets * chunks, classes * -(-targets // (classes * abreast)))
    is_refused = (np.minimum(source_run, target_run) * item < SECTOR) | (tried.sizes * item < _SMALL_BLOCK)
    is_refused |= ((tried.extents > 1).sum(axis=1) > RUN_AXES) | (tried.sizes // source_run > threads)
    return _WordRuns(
        source_run, target_run, shared, blocks, passes, chunks, bytes_us, is_refused | (chunks > CHUNKS[-1])
    )


def _microseconds(problem: TransposeProblem, ctas: WordCtas, conflicts: int) -> npt.NDArray[np.float64]:
    """Return about the times of all blocks with so many words of a bank, infinite where threads do not suffice."""
    tried, runs, item = tried_blocks(problem), _runs(problem, ctas.threads), problem.itemsize
    word = _WORD_US + _WAVEFRONT * (WORD // item * conflicts)
    word = word + _TO_SECTOR * (runs.shared > 0) + _OF_CHUNKS * (runs.chunks > 1)
    at_once = np.minimum(ctas.resident, -(-runs.blocks // SMS)) * (ctas.threads // WARP)
    rounds = -(-runs.blocks // (ctas.resident * SMS))
    by_sm = rounds * (_ROUND + at_once * (_WARP + runs.passes * word))
    entries = tried.sizes // runs.source_run + tried.sizes // runs.target_run
    times: npt.NDArray[np.float64] = _LAUNCH + _ENTRY_US * entries + np.cbrt(runs.bytes_us**3 + by_sm**3)
    times[runs.is_refused | (tried.sizes * item > ctas.most_bytes)] = math.inf
    return times


def _target_runs(
    axes: Sequence[Axis], tried: TriedBlocks, side: Side, limits: tuple[Extents, int]
) -> tuple[Extents, Extents, Extents]:
    """Return the elements of blocks' runs, what adjacent blocks share along those, and the blocks of a problem.

    `limits` are the elements that runs need to end with a sector, and those of a run at most: longer ones end with an
    axis. Runs of whole axes, and those of which it would be more than a fourth, share none.
    """
    ahead, most = limits
    run, shared, blocks = np.ones(len(tried.sizes), np.int64), np.zeros(len(tried.sizes), np.int64), tried.blocks.copy()
    is_whole, size = np.ones(len(tried.sizes), np.bool_), 1
    for number in side.order:
        if side.strides[number] != size:
            break
        part, extent = tried.extents[:, number], axes[number].extent
        is_whole &= run * part <= most
        wanted = -(-ahead // size)
        wanted[~is_whole | (part == extent) | (part < _LEAST_SHARES * wanted)] = 0
        run = np.where(is_whole, run * part, run)
        shared += wanted
        blocks = blocks // -(-extent // part) * (-(-(extent - part) // (part - wanted)) + 1)
        is_whole &= part == extent
        size *= extent
    return run, shared, blocks


@functools.lru_cache(maxsize=256)
def word_block(problem: TransposeProblem, ctas: WordCtas) -> tuple[WordBlock, float] | None:
    """Return the block of predicted least time, and its microseconds on an H200; None if runs are short."""
    problem = in_units(problem)
    axes, tried = axes_of(problem), tried_blocks(problem)
    runs, times = _runs(problem, ctas.threads), _microseconds(problem, ctas, 1)
    best = int(times.argmin())
    if not math.isfinite(times[best]):
        return None
    extents = tuple(tried.extents[best].tolist())
    source, target = sides_of(problem)
    source_axes = _axes_of_run(source, extents, int(runs.source_run[best]))
    target_axes = _axes_of_run(target, extents, int(runs.target_run[best]))
    block = WordBlock(axes, extents, source_axes, target_axes, int(runs.shared[best]))
    return block, float(_microseconds(problem, ctas, conflicts_of(block, problem.itemsize))[best])


def _axes_of_run(side: Side, extents: Sequence[int], run: int) -> tuple[int, ...]:
    """Return the axes of a run of so many elements."""
    found: list[int] = []
    for number in side.order:
        if extents[number] > 1:
            found.append(number)
            if run <= extents[number]:
                break
            run //= extents[number]
    return tuple(found)


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
    for number in sorted(block.source_others, key=lambda one: block.axes[one].source):
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
    for number in block.target_others:
        offsets = (offsets[:, None] + np.arange(block.extents[number]) * block.axes[number].target).ravel()
    counts = np.bincount(offsets % (WORD // itemsize), minlength=WORD)
    return (0, *np.cumsum(counts).tolist())
