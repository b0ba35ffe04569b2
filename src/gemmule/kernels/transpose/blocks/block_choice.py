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
    Side,
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
# Microseconds of an H200, fitted to 80 permutations: of a launch, of 16 places that a thread computes, and of a byte
# that is read or written.
_LAUNCH, _PLACES, _BYTE = 1.9, 0.44, 0.245e-6
# Of a byte of two sectors and of a line, that a run of the source shares with others; the same of a run of the target.
SHARED = ({128: 0.106e-6}, {64: 0.209e-6, 128: 0.051e-6})
# Of a warp's access to the source, and what it costs more through registers; of one to the target, and of the words
# of a bank that are read for it; of a block.
_READ, _NARROW, _WRITE, _GATHER, _BLOCK = 6.0e-6, 12.1e-6, 2.8e-6, 1.0e-6, 0.05e-3


def block_of(problem: TransposeProblem, threads: int, held: int) -> Block:
    """Return the block that threads of so many bytes are predicted to move fastest."""
    return _fastest(in_units(problem), threads, held)[0]


def predicted_us(problem: TransposeProblem, threads: int, held: int) -> float:
    """Return about the microseconds in which an H200 moves such blocks."""
    return _LAUNCH + _fastest(in_units(problem), threads, held)[1]


class TriedBlocks(NamedTuple):
    """Blocks that are compared, one in each row."""

    extents: Extents
    sizes: Extents  #: Elements of each.
    blocks: Extents  #: Blocks of a problem.
    runs: tuple[tuple[Extents, Extents], tuple[Extents, Extents]]  #: As `runs_of` says, of source and target.


@functools.lru_cache(maxsize=256)
def _fastest(problem: TransposeProblem, threads: int, held: int) -> tuple[Block, float]:
    axes, item, sides = axes_of(problem), problem.itemsize, sides_of(problem)
    found = tried_blocks(problem)
    times, vectors = _microseconds(axes, found, sides, (threads, held, item))
    # Of equal predictions the first.
    best = int(times.argmin())
    microseconds, extents = float(times[best]), tuple(found.extents[best].tolist())
    read, write = (int(one[best]) for one in vectors)
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
        if (issued := _READ * tried.accesses[0] + _GATHER * conflicts * size) < least:
            block, least = tried, issued
        if conflicts == 1:
            break
    assert block is not None
    return block, microseconds


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


def _microseconds(
    axes: Sequence[Axis], tried: TriedBlocks, sides: tuple[Side, Side], limits: tuple[int, int, int]
) -> tuple[npt.NDArray[np.float64], list[Extents]]:
    """Return about the times of all blocks of each size, and the elements of accesses to source and target.

    The time is infinite where threads do not suffice.
    """
    threads, held, item = limits
    extents, size, blocks, runs = tried
    every = math.prod(axis.extent for axis in axes)
    times = np.asarray(2 * _BYTE * every * item + _BLOCK * blocks, np.float64)
    vectors = []
    times[size > threads * held // item] = math.inf
    # What blocks overlap is read again, and not written.
    for side, (run, aligned), shared, moved in zip(
        sides, runs, SHARED, (blocks * size, np.full_like(size, every)), strict=True
    ):
        known = lowest_bit(aligned | run * item)
        nbytes = np.where(known >= max(WORD, item), np.minimum(known, VECTOR_BYTES), item)
        vector = nbytes // item
        accesses = size // vector
        count = np.minimum(MOST_ACCESSES, held // nbytes)
        times[accesses > threads * count] = math.inf
        vectors.append(vector)
        rates = [rate * np.maximum(width - aligned, 0) for width, rate in shared.items()]
        times += moved / run * np.sum(rates, axis=0)
        warps = blocks * (-(-accesses // threads) * threads // WARP)
        if side is sides[0]:
            times += warps * np.where(nbytes >= WORD, _READ, _READ + _NARROW)
        else:
            times += warps * (_WRITE + _GATHER * vector)
            # Vectors along the first axis only need no coordinates of their elements.
            times += np.where(extents[:, side.order[0]] % vector != 0, _PLACES / 16 * count * vector, 0.0)
    return times, vectors
