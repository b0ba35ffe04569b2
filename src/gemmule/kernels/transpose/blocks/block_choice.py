"""The extents of a block by predicted time."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, VECTOR_BYTES
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.blocks.block import (
    BLOCK_AXES,
    Axis,
    Block,
    Extents,
    axes_of,
    conflicts_of,
    count_of,
    in_units,
    lowest_bit,
    runs_of,
    sides_of,
)
from gemmule.kernels.transpose.tile_config import SECTOR, WARP, WORD

# Elements that a part of an axis is larger than the next smaller one that is tried, as a factor.
_FINE = 1.2
#: Bytes of a block of any config, at most.
LARGEST = 512 * 64
# Microseconds of an H200, fitted to 587 times of 146 permutations: of a launch, and what one takes more whose CTAs
# leave no room for the next one's, by their threads and number.
_LAUNCH = 1.12
_CROWDED = {(256, 2): 0.0, (512, 1): 0.1, (256, 4): 0.0}
# Addresses that a thread computes: of an access to the source, coordinates of the target, and an element.
_READ_PLACE, _COORDINATES, _PLACE = 0.013, 0.038, 0.0235
# A byte that is read or written; a byte of a line that a run of the source shares with others, and one of a
# sector, and of a line, that a run of the target does.
_BYTE, _SHARED = 0.25e-6, ({128: 0.032e-6}, {32: 0.29e-6, 128: 0.035e-6})
# An SM's blocks that its CTAs move at once, and a warp's access to source and target.
_ROUND = {(256, 2): 0.345, (512, 1): 0.407, (256, 4): 0.353}
_READ, _WRITE = 2.6e-3, 1.5e-3
# Each word of a bank beyond the first, of an SM, and words that are not counted.
_WAVEFRONT, _FEW_WORDS = 0.35e-3, 3
# Factors of small batches, by which blocks are not chosen: of bytes that runs share, of which the L2 cache holds the
# lines until all are written, and of accesses one by one. Fitted to 20 times of as many transposes.
_SHARED_SMALL, _ONE_BY_ONE_SMALL = 0.25, 0.82
# A warp's access to the source, and each word of a bank beyond the first: to choose vectors.
_ACCESS, _CONFLICT = 3.6e-6, 0.55e-6


class Ctas(NamedTuple):
    """CTAs that move blocks."""

    threads: int  #: Threads of each.
    held: int  #: Bytes of a block that a thread moves, at most.
    resident: int  #: CTAs of an SM.


def block_of(problem: TransposeProblem, ctas: Ctas) -> Block:
    """Return the block that such CTAs are predicted to move fastest."""
    return _block(in_units(problem), ctas)


def predicted_us(problem: TransposeProblem, ctas: Ctas) -> float:
    """Return about the microseconds in which such CTAs of an H200 move all blocks, but for conflicts of banks."""
    return _fastest(in_units(problem), ctas)[1]


def small_us(problem: TransposeProblem, ctas: Ctas) -> float:
    """Return the same of a small batch, closer: by `predicted_us` blocks are chosen."""
    problem = in_units(problem)
    best, _ = _fastest(problem, ctas)
    return float(_microseconds(problem, ctas, is_small=True)[best])


def conflicts_us(problem: TransposeProblem, ctas: Ctas) -> float:
    """Return about the microseconds that conflicts of banks take more, where they are many."""
    problem = in_units(problem)
    block = _block(problem, ctas)
    conflicts = conflicts_of(block, problem.itemsize)
    if conflicts <= _FEW_WORDS:
        return 0.0
    words = math.prod(block.counts) * math.prod(block.extents) / WARP / SMS
    return _WAVEFRONT * (conflicts - 1) * words


def least_us(problem: TransposeProblem) -> float:
    """Return the microseconds in which an H200 moves blocks at least: a launch, and the bytes."""
    return _LAUNCH + _BYTE * problem.bytes_min


class TriedBlocks(NamedTuple):
    """Blocks that are compared, one in each row."""

    extents: Extents
    sizes: Extents  #: Elements of each.
    blocks: Extents  #: Blocks of a problem.
    runs: tuple[tuple[Extents, Extents], tuple[Extents, Extents]]  #: Result of `runs_of`, for source and target.


@functools.lru_cache(maxsize=256)
def _fastest(problem: TransposeProblem, ctas: Ctas) -> tuple[int, float]:
    """Return the number of the block of least predicted time, and its microseconds."""
    times = _microseconds(problem, ctas)
    # Ties go to the first.
    best = int(times.argmin())
    return best, float(times[best])


@functools.lru_cache(maxsize=256)
def _block(problem: TransposeProblem, ctas: Ctas) -> Block:
    axes, item, sides, found = axes_of(problem), problem.itemsize, sides_of(problem), tried_blocks(problem)
    best, _ = _fastest(problem, ctas)
    extents = tuple(found.extents[best].tolist())
    read, write = (int(one.vector[best]) for one in _moved(problem, ctas.held)[1])
    source, target = (tuple(number for number in side.order if extents[number] > 1) for side in sides)
    size = math.prod(extents)

    # Pitches in shared memory are multiples of accesses to the source: wide ones may keep lanes in the same banks.
    block: Block | None = None
    least = math.inf
    for vector in (read >> k for k in range(5) if read >> k):
        tried = Block(axes, extents, target, source, (vector, write))
        most = ctas.threads * count_of(ctas.held, vector * item)
        if block is not None and (vector * item < WORD or size // vector > most):
            break
        conflicts = conflicts_of(tried, item)
        if (issued := _ACCESS * tried.accesses[0] + _CONFLICT * conflicts * size) < least:
            block, least = tried, issued
        if conflicts == 1:
            break
    assert block is not None
    return block


# Cached, as all configs choose from the same blocks.
@functools.lru_cache(maxsize=16)
def tried_blocks(problem: TransposeProblem) -> TriedBlocks:
    """Return the blocks that are compared, of any config."""
    axes, item, sides = axes_of(problem), problem.itemsize, sides_of(problem)
    most = LARGEST // item
    source, target = (_prefixes(axes, side.order, most, max(SECTOR // item, 1)) for side in sides)
    found = np.maximum(source[:, None], target).reshape(-1, len(axes))
    allowed = found.prod(axis=1) <= most
    if len(axes) > BLOCK_AXES:
        allowed &= (found > 1).sum(axis=1) <= BLOCK_AXES
    found = found[allowed]
    whole = [axis.extent for axis in axes]
    # Offsets in a block are of 32 bits.
    if any(side.span(whole) * item > MAX_EXTENT for side in sides):
        spans = [np.abs(side.strides) @ (found.T - 1) for side in sides]
        found = found[np.max(spans, axis=0) * item <= MAX_EXTENT]
    source_runs, target_runs = (runs_of(axes, found, side, item) for side in sides)
    blocks = (-(-np.array(whole) // found)).prod(axis=1)
    return TriedBlocks(found, found.prod(axis=1), blocks, (source_runs, target_runs))


def _prefixes(axes: Sequence[Axis], order: Sequence[int], most: int, sector: int) -> Extents:
    """Return extents of blocks: all of the first axes of an order, and a part of the next."""
    found: dict[tuple[int, ...], None] = {}
    extents = [1] * len(axes)
    size = 1
    for number in order:
        extent, part = axes[number].extent, 1
        while part * size <= most:
            for unit in (1, 4, sector):
                extents[number] = min(-(-part // unit) * unit, extent)
                found[tuple(extents)] = None
            if part == extent:
                break
            # The next larger part of those that divide the axis into parts of almost one size.
            wanted = math.ceil(part * _FINE)
            part = extent if wanted >= extent else -(-extent // ((extent - 1) // (wanted - 1)))
        if extent * size > most:
            break
        extents[number] = extent
        size *= extent
    return np.array(list(found))


class _Accesses(NamedTuple):
    """Accesses to blocks on a side."""

    vector: Extents  #: Elements of one.
    most: Extents  #: Those of a thread, at most.
    places: npt.NDArray[np.float64]  #: Microseconds of a launch for the places of one.
    in_registers: npt.NDArray[np.bool_]  #: Whether the source is read into registers, and all places are computed.


# Cached, as configs differ in the number of threads.
@functools.lru_cache(maxsize=16)
def _moved(problem: TransposeProblem, held: int) -> tuple[npt.NDArray[np.float64], tuple[_Accesses, _Accesses]]:
    """Return about the times of all blocks' bytes, and their accesses, of source and target."""
    axes, item, sides = axes_of(problem), problem.itemsize, sides_of(problem)
    extents, size, blocks, runs = tried_blocks(problem)
    every = math.prod(axis.extent for axis in axes)
    # With strided elements the bytes between them are moved too, those of a sector at most.
    times = np.full(len(size), sum(_BYTE * every * item * min(side.gap, max(SECTOR // item, 1)) for side in sides))
    accesses = []
    # Overlaps of blocks are read again, and not written.
    for side, (run, aligned), shared, moved in zip(
        sides, runs, _SHARED, (blocks * size, np.full_like(size, every)), strict=True
    ):
        known = lowest_bit(aligned | run * item)
        nbytes = np.where(known >= max(WORD, item), np.minimum(known, VECTOR_BYTES), item)
        vector, count = nbytes // item, held // np.maximum(nbytes, WORD)
        rates = [rate * np.maximum(width - aligned, 0) for width, rate in shared.items()]
        times += moved / run * np.sum(rates, axis=0)
        if side is sides[0]:
            in_registers = nbytes < WORD
            places = np.full(len(size), _READ_PLACE)
        else:
            # An element of each row along the first axis needs its coordinates, or all do.
            first = extents[:, side.order[0]]
            is_short = first < vector
            is_each = np.where(is_short, in_registers | (first & (first - 1) > 0), in_registers & (first % vector > 0))
            coordinates = np.where(is_each, vector, np.where(is_short, vector // first, 1))
            places = _COORDINATES * coordinates + _PLACE * vector
        accesses.append(_Accesses(vector, count, places, in_registers))
    return times, (accesses[0], accesses[1])


def _microseconds(problem: TransposeProblem, ctas: Ctas, is_small: bool = False) -> npt.NDArray[np.float64]:
    """Return about the times of all blocks, infinite where threads do not suffice.

    The larger of two, mostly: the bytes' time, and that of an SM for its blocks, as many at once as it has CTAs.
    """
    tried = tried_blocks(problem)
    moved, accesses = _moved(problem, ctas.held)
    most, warps, which = ctas.resident * SMS, ctas.threads // WARP, (ctas.threads, ctas.resident)
    places, of_block = np.zeros(len(moved)), np.zeros(len(moved))
    is_refused = tried.sizes > ctas.threads * ctas.held // problem.itemsize
    for (vector, allowed, of_one, in_registers), rate in zip(accesses, (_READ, _WRITE), strict=True):
        count = -(-tried.sizes // vector // ctas.threads)
        of_block += rate * warps * count
        places += np.where(in_registers, allowed, count) * of_one
        is_refused |= count > allowed
    at_once = np.minimum(ctas.resident, -(-tried.blocks // SMS))
    by_sm = -(-tried.blocks // most) * (_ROUND[which] + at_once * of_block)
    if is_small:
        nbytes = _BYTE * problem.bytes_min
        moved = nbytes + _SHARED_SMALL * (moved - nbytes)
        by_sm = np.where(accesses[0].in_registers, _ONE_BY_ONE_SMALL, 1.0) * by_sm
    launch = _LAUNCH + _CROWDED[which] * np.minimum(tried.blocks / most, 1.0)
    times: npt.NDArray[np.float64] = launch + places + np.cbrt(moved**3 + by_sm**3)
    times[is_refused] = math.inf
    return times
