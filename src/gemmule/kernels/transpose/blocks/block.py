"""Blocks of several axes: the config, and the extents of a block that fill the lines of source and target."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gemmule.core.dataclass import dataclass
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, VECTOR_BYTES
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.tile_config import LINE, MAX_SHARED, SECTOR, WARP, WORD, TileConfig, most_words_of_a_bank

#: Axes of a problem that a launch covers, and those along which a block has more than one element.
AXES, BLOCK_AXES = 8, 4
# Bytes of wide accesses to source and target, the widest first; asynchronous copies are of 4 bytes and more.
_WIDE = (16, 8, 4)
# Pitches that are tried along an axis: accesses beyond the elements of a smaller axis.
_PITCHES = 33
# Elements that a part of an axis is larger than the next smaller one that is tried, as a factor.
_FINE = 1.2


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


@dataclass(frozen=True)
class BlocksConfig(TileConfig):
    """Threads of a CTA, and bytes of a thread."""

    threads: int = 128  #: Threads of a CTA.
    held: int = 64  #: Bytes of a block that a thread moves, at most, in up to 16 accesses.
    resident: int = 5  #: CTAs of an SM.
    ctas: int = 5 * SMS  #: CTAs that share all blocks.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()

    @property
    def outputs(self) -> int:
        return self.threads * self.held

    def on(self, multiprocessors: int) -> BlocksConfig:
        return dataclasses.replace(self, ctas=self.resident * multiprocessors)

    def of(self, problem: TransposeProblem) -> Block:
        """Return the block that a CTA moves."""
        return block_of(problem, self.threads, self.held)

    def count(self, nbytes: int) -> int:
        """Return the accesses of so many bytes of a thread, at most."""
        return count_of(self.held, nbytes)

    def stages(self, nbytes: int) -> int:
        """Return the blocks in shared memory, where accesses to the source are of so many bytes."""
        return 3 if nbytes >= WORD else 2

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        return math.prod(self.of(problem).counts), 1

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return min(self.tiles(problem)[0], self.ctas), 1, 1

    def why_not(self, problem: TransposeProblem) -> str | None:
        block, item = self.of(problem), problem.itemsize
        spans = [
            item * sum(abs(getattr(block.axes[one], side)) * (block.extents[one] - 1) for one in block.inner)
            for side in ("source", "target")
        ]
        if max(spans) > MAX_EXTENT:
            return f"a block spans {max(spans)} bytes, more than {MAX_EXTENT}"
        if (size := self.stages(block.vectors[0] * item) * stage_bytes(block, item)) > MAX_SHARED:
            return f"blocks take {size} bytes of shared memory, more than {MAX_SHARED}"
        if (count := self.tiles(problem)[0]) > MAX_EXTENT - self.ctas:
            return f"there are {count} blocks, more than {MAX_EXTENT - self.ctas}"
        return super().why_not(problem)


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


class _Side(NamedTuple):
    """Source or target of a problem: its axes' strides, their order, and the bytes of an access, the widest first."""

    strides: tuple[int, ...]
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    alignment: int


def _sides(problem: TransposeProblem) -> tuple[_Side, _Side]:
    axes, item = axes_of(problem), problem.itemsize
    sizes = sizes_of(item)

    def side(name: str) -> _Side:
        strides = tuple(getattr(axis, name) for axis in axes)
        order = tuple(sorted(range(len(axes)), key=lambda number: abs(strides[number])))
        return _Side(strides, order, sizes, getattr(problem, name).alignment)

    return side("source"), side("target")


def _run(axes: Sequence[Axis], extents: Sequence[int], side: _Side, item: int) -> tuple[int, int, int]:
    """Return the contiguous elements of a block on a side, their axes, and the bytes that all runs are aligned to."""
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
    return run, held, known


@functools.lru_cache(maxsize=256)
def block_of(problem: TransposeProblem, threads: int, held: int) -> Block:
    """Return the block that threads of so many bytes are predicted to move fastest."""
    axes, item, sides = axes_of(problem), problem.itemsize, _sides(problem)
    most = threads * held // item
    best: tuple[float, tuple[int, ...], tuple[int, int]] | None = None
    seen = set()
    for pair in itertools.product(*(list(_prefixes(axes, side.order, most, max(SECTOR // item, 1))) for side in sides)):
        extents = tuple(map(max, *pair))
        size = math.prod(extents)
        if extents in seen or size > most or sum(extent > 1 for extent in extents) > BLOCK_AXES:
            continue
        seen.add(extents)
        found = _cost(axes, extents, sides, (threads, held, item))
        if found is not None and (best is None or found[0] < best[0]):
            best = found[0], extents, found[1]
    assert best is not None
    _, extents, vectors = best
    source, target = (tuple(number for number in side.order if extents[number] > 1) for side in sides)
    # Pitches in shared memory are multiples of accesses to the source: wide ones may keep lanes in the same banks.
    size = math.prod(extents)
    widths = [
        one
        for one in (vectors[0] >> k for k in range(5))
        if one == vectors[0] or (one * item >= max(WORD, item) and size // one <= threads * count_of(held, one * item))
    ]
    return min((Block(axes, extents, target, source, (one, vectors[1])) for one in widths), key=_issued(item))


def _issued(item: int) -> Callable[[Block], float]:
    """Return a function for about the cycles in which a block's accesses are issued."""

    def cycles(block: Block) -> float:
        return _READ * block.accesses[0] + conflicts_of(block, item) * math.prod(block.extents)

    return cycles


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


def _cost(
    axes: Sequence[Axis], extents: tuple[int, ...], sides: tuple[_Side, _Side], limits: tuple[int, int, int]
) -> tuple[float, tuple[int, int]] | None:
    """Return about the cycles of an SM for an element, and the elements of accesses; None if threads do not suffice."""
    threads, held, item = limits
    size, cover = math.prod(extents), 1.0
    for axis, extent in zip(axes, extents, strict=True):
        cover *= -(-axis.extent // extent) * extent / axis.extent
    moved, work, vectors = 0.0, 0.0, []
    for side, factor in zip(sides, (cover, 1.0), strict=True):
        run, _, known = _run(axes, extents, side, item)
        nbytes = next((one for one in side.sizes if known % one == 0 and run * item % one == 0), item)
        vector = max(nbytes // item, 1)
        accesses = size // vector
        if accesses > threads * count_of(held, nbytes):
            return None
        vectors.append(vector)
        # Sectors that a run shares with its neighbours; those of 64 bytes are read together from memory.
        shared = sum(width - min(known & -known, width) for width in (SECTOR, 2 * SECTOR)) / 2
        moved += factor * size / run * (run * item + shared)
        rounds = -(-accesses // threads) * threads / WARP
        gathered = 3 * vector if side is sides[1] else (0 if nbytes >= WORD else 2)
        work += cover * rounds * (8 + gathered)
    # A CTA's block waits for its reads; so many are in flight.
    waiting = cover * (_BLOCK_CYCLES / (2 * _CTAS))
    return (max(moved / _BYTES, work / _ISSUED, waiting) + 0.2 * (work / _ISSUED + waiting)) / size, tuple(vectors)


_BLOCK_CYCLES, _CTAS, _BYTES, _ISSUED, _READ = 1200, 5, 17.0, 2.8, 2.0


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
        tried = [size + extra * unit for extra in range(_PITCHES)]
        if size % unit or number == block.read[0] or all(lane[place] == 0 for lane in lanes):
            tried = [size]

        def conflicts(pitch: int, number: int = number) -> int:
            return _conflicts(lanes, [(pitches | {number: pitch})[one] * itemsize for one in block.inner])

        # The first without conflicts, else that with the fewest.
        pitches[number] = next((one for one in tried if conflicts(one) == 1), 0) or min(tried, key=conflicts)
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
