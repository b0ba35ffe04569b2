"""The extents of a block by predicted time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT
from gemmule.kernels.transpose.blocks.block import (
    BLOCK_AXES,
    Axis,
    Block,
    Side,
    axes_of,
    conflicts_of,
    count_of,
    in_units,
    run_of,
    sides_of,
)
from gemmule.kernels.transpose.tile_config import SECTOR, WARP, WORD

# Elements that a part of an axis is larger than the next smaller one that is tried, as a factor.
_FINE = 1.2
# Microseconds of an H200, fitted to 80 permutations: of a launch, of 16 places that a thread computes, and of a byte
# that is read or written.
_LAUNCH, _PLACES, _BYTE = 1.9, 0.44, 0.245e-6
# Of a byte of two sectors and of a line, that a run of the source shares with others; the same of a run of the target.
_SHARED = ({128: 0.106e-6}, {64: 0.209e-6, 128: 0.051e-6})
# Of a warp's access to the source, and what it costs more through registers; of one to the target, and of the words
# of a bank that are read for it; of a block.
_READ, _NARROW, _WRITE, _GATHER, _BLOCK = 6.0e-6, 12.1e-6, 2.8e-6, 1.0e-6, 0.05e-3


def block_of(problem: TransposeProblem, threads: int, held: int) -> Block:
    """Return the block that threads of so many bytes are predicted to move fastest."""
    return _fastest(in_units(problem), threads, held)[0]


def predicted_us(problem: TransposeProblem, threads: int, held: int) -> float:
    """Return about the microseconds in which an H200 moves such blocks."""
    return _LAUNCH + _fastest(in_units(problem), threads, held)[1]


@functools.lru_cache(maxsize=256)
def _fastest(problem: TransposeProblem, threads: int, held: int) -> tuple[Block, float]:
    axes, item, sides = axes_of(problem), problem.itemsize, sides_of(problem)
    most = threads * held // item
    best: tuple[float, tuple[int, ...], tuple[int, int]] | None = None
    prefixes = (dict.fromkeys(_prefixes(axes, side.order, most, max(SECTOR // item, 1))) for side in sides)
    for extents in dict.fromkeys(tuple(map(max, *pair)) for pair in itertools.product(*prefixes)):
        if math.prod(extents) > most or len(extents) - extents.count(1) > BLOCK_AXES:
            continue
        found = _microseconds(axes, extents, sides, (threads, held, item))
        if found is None or (best is not None and found[0] >= best[0]):
            continue
        # Offsets in a block are of 32 bits.
        if all(side.span(extents) * item <= MAX_EXTENT for side in sides):
            best = found[0], extents, found[1]
    # Single elements are always moved.
    assert best is not None
    microseconds, extents, vectors = best
    source, target = (tuple(number for number in side.order if extents[number] > 1) for side in sides)
    size = math.prod(extents)

    # Pitches in shared memory are multiples of accesses to the source: wide ones may keep lanes in the same banks.
    block: Block | None = None
    least = math.inf
    for vector in (vectors[0] >> k for k in range(5) if vectors[0] >> k):
        tried = Block(axes, extents, target, source, (vector, vectors[1]))
        if block is not None and (vector * item < WORD or size // vector > threads * count_of(held, vector * item)):
            break
        conflicts = conflicts_of(tried, item)
        if (issued := _READ * tried.accesses[0] + _GATHER * conflicts * size) < least:
            block, least = tried, issued
        if conflicts == 1:
            break
    assert block is not None
    return block, microseconds


def _prefixes(axes: Sequence[Axis], order: Sequence[int], most: int, sector: int) -> Iterator[tuple[int, ...]]:
    """Yield extents of blocks: all of the first axes of an order, and a part of the next."""
    extents = [1] * len(axes)
    size = 1
    for number in order:
        extent, part = axes[number].extent, 1
        while part * size <= most:
            for unit in dict.fromkeys((1, 4, sector)):
                extents[number] = min(-(-part // unit) * unit, extent)
                yield tuple(extents)
            if part == extent:
                break
            # The next larger part of those that divide the axis into parts of almost one size.
            wanted = math.ceil(part * _FINE)
            part = extent if wanted >= extent else -(-extent // ((extent - 1) // (wanted - 1)))
        if extent * size > most:
            return
        extents[number] = extent
        size *= extent


def _microseconds(
    axes: Sequence[Axis], extents: tuple[int, ...], sides: tuple[Side, Side], limits: tuple[int, int, int]
) -> tuple[float, tuple[int, int]] | None:
    """Return about the time of all blocks, and the elements of accesses; None if threads do not suffice."""
    threads, held, item = limits
    size, every, blocks = math.prod(extents), 1, 1
    for axis, extent in zip(axes, extents, strict=True):
        every *= axis.extent
        blocks *= -(-axis.extent // extent)
    found, vectors = 2 * _BYTE * every * item + _BLOCK * blocks, []
    # What blocks overlap is read again, and not written.
    for side, shared, moved in zip(sides, _SHARED, (blocks * size, every), strict=True):
        run, known = run_of(axes, extents, side, item)
        nbytes = next((one for one in side.sizes if known % one == 0 and run * item % one == 0), item)
        vector = nbytes // item
        accesses = size // vector
        if accesses > threads * count_of(held, nbytes):
            return None
        vectors.append(vector)
        aligned = known & -known
        found += moved / run * sum(rate * (width - aligned) for width, rate in shared.items() if aligned < width)
        warps = blocks * (-(-accesses // threads) * threads // WARP)
        if side is sides[0]:
            found += warps * (_READ if nbytes >= WORD else _READ + _NARROW)
        else:
            found += warps * (_WRITE + _GATHER * vector)
            # Vectors along the first axis only need no coordinates of their elements.
            if extents[side.order[0]] % vector:
                found += _PLACES * count_of(held, nbytes) * vector / 16
    return found, (vectors[0], vectors[1])
