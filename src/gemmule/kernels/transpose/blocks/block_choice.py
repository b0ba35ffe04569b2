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
from gemmule.kernels.transpose.blocks.block import (
    BLOCK_AXES,
    MOST_ACCESSES,
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
# Microseconds of an H200, fitted to 360 times of 150 permutations: of a launch, of 16 places that a thread computes, of
# as many whose coordinates it computes, and of a byte that is read or written.
_LAUNCH, _PLACES, _COORDINATES, _BYTE = 1.5, 0.06, 0.26, 0.225e-6
# Of a byte of a line that a run of the source shares with others; of one of a sector, of two, and of a line, that a run
# of the target does.
_SHARED = ({128: 0.04e-6}, {32: 0.45e-6, 64: 0.08e-6, 128: 0.013e-6})
# Of a warp's access to the source, and what it costs more through registers; of one to the target, and of the words
# that are gathered for it; what each word of a bank costs beyond the first; of a warp for a block.
_READ, _NARROW, _WRITE, _GATHER, _CONFLICT, _WARP = 3.6e-6, 8.6e-6, 3.8e-6, 0.5e-6, 0.55e-6, 0.097e-3


def block_of(problem: TransposeProblem, threads: int, held: int) -> Block:
    """Return the block that threads of so many bytes are predicted to move fastest."""
    return _block(in_units(problem), threads, held)


def predicted_us(problem: TransposeProblem, threads: int, held: int) -> float:
    """Return about the microseconds in which an H200 moves such blocks."""
    return _LAUNCH + _fastest(in_units(problem), threads, held)[1]


def least_us(problem: TransposeProblem) -> float:
    """Return the microseconds in which an H200 moves blocks at least: a launch, and the bytes."""
    return _LAUNCH + _BYTE * problem.bytes_min


class TriedBlocks(NamedTuple):
    """Blocks that are compared, one in each row."""

    extents: Extents
    sizes: Extents  #: Elements of each.
    blocks: Extents  #: Blocks of a problem.
    runs: tuple[tuple[Extents, Extents], tuple[Extents, Extents]]  #: As `runs_of` says, of source and target.


@functools.lru_cache(maxsize=256)
def _fastest(problem: TransposeProblem, threads: int, held: int) -> tuple[int, float]:
    """Return the number of the block of least predicted time, and its microseconds."""
    times = _microseconds(problem, threads, held)
    # Of equal predictions the first.
    best = int(times.argmin())
    return best, float(times[best])


@functools.lru_cache(maxsize=256)
def _block(problem: TransposeProblem, threads: int, held: int) -> Block:
    axes, item, sides, found = axes_of(problem), problem.itemsize, sides_of(problem), tried_blocks(problem)
    best, _ = _fastest(problem, threads, held)
    extents = tuple(found.extents[best].tolist())
    read, write = (int(one.vector[best]) for one in _moved(problem, held)[1])
    source, target = (tuple(number for number in side.order if extents[number] > 1) for side in sides)
    size = math.prod(extents)

    # Pitches in shared memory are multiples of accesses to the source: wide ones may keep lanes in the same banks.
    block: Block | None = None
    least = math.inf
    for vector in (read >> k for k in range(5) if read >> k):
        tried = Block(axes, extents, target, source, (vector, write))
        if block is not None and (vector * item < WORD or size // vector > threads * count_of(held, vector * item)):
            break
        conflicts = conflicts_of(tried, item)
        if (issued := _READ * tried.accesses[0] + _CONFLICT * conflicts * size) < least:
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
    rate: npt.NDArray[np.float64]  #: Microseconds of a warp's.


# Cached, as configs differ in the number of threads.
@functools.lru_cache(maxsize=16)
def _moved(problem: TransposeProblem, held: int) -> tuple[npt.NDArray[np.float64], tuple[_Accesses, _Accesses]]:
    """Return about the times of all blocks but for their accesses, and these, of source and target."""
    axes, item, sides = axes_of(problem), problem.itemsize, sides_of(problem)
    extents, size, blocks, runs = tried_blocks(problem)
    every = math.prod(axis.extent for axis in axes)
    times = np.full(len(size), 2 * _BYTE * every * item)
    accesses = []
    # What blocks overlap is read again, and not written.
    for side, (run, aligned), shared, moved in zip(
        sides, runs, _SHARED, (blocks * size, np.full_like(size, every)), strict=True
    ):
        known = lowest_bit(aligned | run * item)
        nbytes = np.where(known >= max(WORD, item), np.minimum(known, VECTOR_BYTES), item)
        vector, count = nbytes // item, np.minimum(MOST_ACCESSES, held // nbytes)
        rates = [rate * np.maximum(width - aligned, 0) for width, rate in shared.items()]
        times += moved / run * np.sum(rates, axis=0)
        if side is sides[0]:
            rate = np.where(nbytes >= WORD, _READ, _READ + _NARROW)
            times += (_PLACES + _COORDINATES) / 16 * count
        else:
            rate = _WRITE + _GATHER * vector
            # Vectors along the first axis only need no coordinates of their elements.
            places = np.where(extents[:, side.order[0]] % vector != 0, _PLACES + _COORDINATES, _PLACES)
            times += places / 16 * count * vector
        accesses.append(_Accesses(vector, count, rate))
    return times, (accesses[0], accesses[1])


def _microseconds(problem: TransposeProblem, threads: int, held: int) -> npt.NDArray[np.float64]:
    """Return about the times of all blocks, infinite where threads do not suffice."""
    tried = tried_blocks(problem)
    moved, accesses = _moved(problem, held)
    times = moved + _WARP * (threads // WARP) * tried.blocks
    times[tried.sizes > threads * held // problem.itemsize] = math.inf
    for vector, most, rate in accesses:
        count = -(-tried.sizes // vector // threads)
        times += tried.blocks * count * (threads // WARP) * rate
        times[count > most] = math.inf
    return times
