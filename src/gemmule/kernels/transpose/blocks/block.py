"""Blocks of several axes: the config, and the extents of a block that fill the lines of source and target."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.dataclass import dataclass
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT, VECTOR_BYTES
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.tile_config import LINE, MAX_SHARED, SECTOR, WARP, WORD, TileConfig, most_words_of_a_bank

#: Axes of a problem that a launch covers, and those along which a block has more than one element.
AXES, BLOCK_AXES = 6, 4
# Bytes of wide accesses to source and target, the widest first. What is read is written to shared memory as it is, and
# pitches are multiples of that: wider accesses would keep lanes in the same banks.
_READS = {1: (4,), 2: (8, 4), 4: (8,), 8: (), 16: ()}
_WRITES = (16, 8, 4)
# Bytes of a block that a thread holds in registers, at most.
_HELD = 64
# Pitches that are tried along an axis: words of shared memory beyond the elements of a smaller axis.
_PITCHES = 33
# CTAs of an SM that were fastest: its registers hold 7.
_RESIDENT = 5


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
    vectors: tuple[int, int]  #: Elements of an access along the first axis of `read`, and along that of `inner`.

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the blocks along each axis; the last one begins earlier where extents are no multiples."""
        return tuple(-(-axis.extent // extent) for axis, extent in zip(self.axes, self.extents, strict=True))

    def units(self, order: Sequence[int]) -> list[int]:
        """Return the accesses along inner axes, in the source's order or the target's."""
        return _units([self.extents[number] for number in order], self.vectors[order is not self.read])


@dataclass(frozen=True)
class BlocksConfig(TileConfig):
    """Threads of a CTA, and elements of a thread."""

    threads: int = 128  #: Threads of a CTA.
    each: int = 16  #: Accesses of a thread to a block, at most; fewer where they are of 8 or 16 bytes.
    ctas: int = _RESIDENT * SMS  #: CTAs that share all blocks.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()

    @property
    def tile_elements(self) -> int:
        return self.threads * self.each

    def on(self, multiprocessors: int) -> BlocksConfig:
        return dataclasses.replace(self, ctas=_RESIDENT * multiprocessors)

    def of(self, problem: TransposeProblem) -> Block:
        """Return the block that a CTA moves."""
        return block_of(problem, self.threads, self.each)

    def count(self, nbytes: int) -> int:
        """Return the accesses of so many bytes of a thread, at most."""
        return _count(self.each, nbytes)

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
        if (size := 2 * stage_bytes(block, item)) > MAX_SHARED:
            return f"two blocks take {size} bytes of shared memory, more than {MAX_SHARED}"
        if (count := self.tiles(problem)[0]) > MAX_EXTENT - self.ctas:
            return f"there are {count} blocks, more than {MAX_EXTENT - self.ctas}"
        return super().why_not(problem)


def axes_of(problem: TransposeProblem) -> tuple[Axis, ...]:
    """Return the axes of more than one element in the target's order."""
    source, target = problem.source, problem.target
    extents = (problem.cols, problem.rows, *reversed(problem.batch))
    sources = (source.col_stride, source.row_stride, *reversed(source.batch_strides))
    targets = (target.col_stride, target.row_stride, *reversed(target.batch_strides))
    found = [Axis(*one) for one in zip(extents, sources, targets, strict=True) if one[0] > 1]
    return tuple(sorted(found, key=lambda axis: abs(axis.target)))


@functools.lru_cache(maxsize=256)
def block_of(problem: TransposeProblem, threads: int, each: int) -> Block:
    """Return a block for threads of so many accesses, whose contiguous runs in source and target are about as long.

    The shorter run grows, along the first axis of its side that is not whole.
    """
    axes, vectors, item = axes_of(problem), vectors_of(problem), problem.itemsize
    target = range(len(axes))
    source = sorted(target, key=lambda number: abs(axes[number].source))
    extents, inner = [1] * len(axes), set[int]()
    for order, vector in zip((source, target), vectors, strict=True):
        if vector > 1:
            extents[order[0]] = vector
            inner.add(order[0])
    least, firsts, sector = tuple(extents), {source[0], target[0]}, max(SECTOR // item, 1)
    orders = {"source": list(source), "target": list(target)}
    runs = {"source": 1, "target": 1}
    while True:
        for side in sorted(runs, key=runs.__getitem__):
            number = next((one for one in orders[side] if extents[one] < axes[one].extent), None)
            if number is None or (number not in inner and len(inner) == BLOCK_AXES):
                continue
            found = least[number] * _larger(axes[number].extent // least[number], extents[number] // least[number])
            if number in firsts:
                # Parts of whole sectors, where the axis is divided.
                found = min(-(-found // sector) * sector, axes[number].extent)
            larger = [*extents[:number], found, *extents[number + 1 :]]
            members = inner | {number}
            if all(
                threads_of(_units([larger[one] for one in order if one in members], vector), each, vector * item)
                <= threads
                for order, vector in zip((source, target), vectors, strict=True)
            ):
                extents, inner = larger, members
                break
        else:
            break
        for side, order in orders.items():
            run = 1
            for number in order:
                run *= extents[number]
                if extents[number] < axes[number].extent:
                    break
            runs[side] = run
    ordered = tuple(number for number in target if number in inner)
    return Block(axes, tuple(extents), ordered, tuple(number for number in source if number in inner), vectors)


def vectors_of(problem: TransposeProblem) -> tuple[int, int]:
    """Return the elements of an access to source and target: as many as all of them are aligned to, or 1."""
    axes, item = axes_of(problem), problem.itemsize
    firsts = [min(range(len(axes)), key=lambda number: abs(getattr(axes[number], side))) for side in Axis._fields[1:]]
    # A single axis may hold all of a block.
    if firsts[0] == firsts[1]:
        return 1, 1

    read, write = accesses_of(item)

    def vector(side: str, sizes: Sequence[int], first: int) -> int:
        strides = [getattr(axis, side) for axis in axes]
        known = math.gcd(axes[first].extent, *strides[:first], *strides[first + 1 :]) * item
        aligned = math.gcd(known, getattr(problem, side).alignment)
        return next(size // item for size in sizes if aligned % size == 0) if strides[first] == 1 else 1

    return vector("source", read, firsts[0]), vector("target", write, firsts[1])


def accesses_of(itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of accesses to source and target, the widest first, an element last."""
    return (*_READS[itemsize], itemsize), (*(size for size in _WRITES if size > itemsize), itemsize)


def _units(extents: Sequence[int], vector: int) -> list[int]:
    """Return the accesses along axes whose first one is accessed in vectors."""
    return [extents[0] // vector, *extents[1:]] if extents else []


def loop_of(units: Sequence[int], each: int, nbytes: int) -> int:
    """Return along which of a block's axes a thread accesses it, `nbytes` each time.

    That along which it has most accesses, if lanes fill lines along those before it; not the first if there are others.
    """
    each = _count(each, nbytes)

    def score(axis: int) -> tuple[float, int]:
        run = LINE if axis == len(units) - 1 else min(math.prod(units[:axis]) * nbytes, LINE)
        return units[axis] / -(-units[axis] // each) * run, axis

    return max(range(min(1, len(units) - 1), len(units)), key=score)


def threads_of(units: Sequence[int], each: int, nbytes: int) -> int:
    """Return the threads that move a block of so many accesses along its axes."""
    along = units[loop_of(units, each, nbytes)]
    return math.prod(units) // along * -(-along // _count(each, nbytes))


def _count(each: int, nbytes: int) -> int:
    return min(each, _HELD // nbytes)


def _larger(extent: int, part: int) -> int:
    """Return the next larger part of an extent that divides it into fewer parts of almost one size."""
    return -(-extent // (-(-extent // part) - 1))


@functools.lru_cache(maxsize=256)
def pitches_of(block: Block, itemsize: int) -> tuple[int, ...]:
    """Return the strides in shared memory of a block's inner axes, in the target's order.

    Elements lie in the source's order. Along each axis that lanes of a warp read, the pitch is chosen for the fewest
    bank conflicts.
    """
    lanes = [(first * block.vectors[1], *rest) for first, *rest in _lanes(block.units(block.inner))]
    pitches = dict.fromkeys(block.inner, 0)
    size = 1
    for number in block.read:
        place = block.inner.index(number)
        # Accesses to the source are written as they are.
        unit = max(WORD // itemsize, block.vectors[0])
        tried = [size + extra * unit for extra in range(_PITCHES)]
        if number == block.read[0] or all(lane[place] == 0 for lane in lanes):
            tried = [size]

        def conflicts(pitch: int, number: int = number) -> int:
            known = pitches | {number: pitch}
            return most_words_of_a_bank(
                [sum(x * known[one] for x, one in zip(lane, block.inner, strict=True)) * itemsize for lane in lanes]
            )

        # The first without conflicts, else that with the fewest.
        pitches[number] = next((one for one in tried if conflicts(one) == 1), 0) or min(tried, key=conflicts)
        size = pitches[number] * block.extents[number]
    return tuple(pitches[number] for number in block.inner)


def block_bytes(block: Block, itemsize: int) -> int:
    """Return the shared memory that a block takes."""
    pitches = zip(block.inner, pitches_of(block, itemsize), strict=True)
    return itemsize * (1 + sum((block.extents[number] - 1) * pitch for number, pitch in pitches))


def stage_bytes(block: Block, itemsize: int) -> int:
    """Return the bytes from a block in shared memory to the next."""
    return -(-block_bytes(block, itemsize) // VECTOR_BYTES) * VECTOR_BYTES


def _lanes(extents: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the coordinates of a warp's first lanes in a block."""
    found = []
    for lane in range(min(WARP, math.prod(extents))):
        rest, place = lane, []
        for extent in extents:
            place.append(rest % extent)
            rest //= extent
        found.append(tuple(place))
    return found
