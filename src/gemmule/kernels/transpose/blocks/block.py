"""Blocks of several axes: the config, and the extents of a block that fill the lines of source and target."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.dataclass import dataclass
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_EXTENT
from gemmule.kernels.parts.hopper_facts import SMS
from gemmule.kernels.transpose.tile_config import MAX_SHARED, WARP, WORD, TileConfig, most_words_of_a_bank

#: Axes of a problem that a launch covers, and those along which a block has more than one element.
AXES, BLOCK_AXES = 6, 4
# Pitches that are tried along an axis: words of shared memory beyond the elements of a smaller axis.
_PITCHES = 33
# CTAs of an SM that its registers hold.
_RESIDENT = 3


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

    @property
    def volume(self) -> int:
        """Return the elements of a block."""
        return math.prod(self.extents)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the blocks along each axis; the last one begins earlier where extents are no multiples."""
        return tuple(-(-axis.extent // extent) for axis, extent in zip(self.axes, self.extents, strict=True))


@dataclass(frozen=True)
class BlocksConfig(TileConfig):
    """Threads of a CTA, and elements of a thread."""

    threads: int = 128  #: Threads of a CTA.
    each: int = 16  #: Elements of a block that a thread moves, at most.
    ctas: int = _RESIDENT * SMS  #: CTAs that share all blocks.

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()

    @property
    def outputs(self) -> int:
        return self.threads * self.each

    def on(self, multiprocessors: int) -> BlocksConfig:
        return dataclasses.replace(self, ctas=_RESIDENT * multiprocessors)

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        return math.prod(block_of(problem, self.outputs).counts), 1

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return min(self.tiles(problem)[0], self.ctas), 1, 1

    def why_not(self, problem: TransposeProblem) -> str | None:
        block, item = block_of(problem, self.outputs), problem.itemsize
        spans = [
            item * sum(abs(getattr(block.axes[one], side)) * (block.extents[one] - 1) for one in block.inner)
            for side in ("source", "target")
        ]
        if max(spans) > MAX_EXTENT:
            return f"a block spans {max(spans)} bytes, more than {MAX_EXTENT}"
        if (size := block_bytes(block, item)) > MAX_SHARED:
            return f"a block takes {size} bytes of shared memory, more than {MAX_SHARED}"
        if size > item << 16:
            return f"a block takes {size // item} places of shared memory, more than {1 << 16}"
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
def block_of(problem: TransposeProblem, most: int) -> Block:
    """Return a block of at most so many elements, whose contiguous runs in source and target are about as long.

    The shorter run grows, along the first axis of its side that is not whole.
    """
    axes = axes_of(problem)
    target = range(len(axes))
    source = sorted(target, key=lambda number: abs(axes[number].source))
    extents, inner = [1] * len(axes), set[int]()
    orders = {"source": list(source), "target": list(target)}
    runs = {"source": 1, "target": 1}
    while True:
        for side in sorted(runs, key=runs.__getitem__):
            number = next((one for one in orders[side] if extents[one] < axes[one].extent), None)
            if number is None or (number not in inner and len(inner) == BLOCK_AXES):
                continue
            found = _larger(axes[number].extent, extents[number])
            if math.prod(extents) // extents[number] * found <= most:
                extents[number] = found
                inner.add(number)
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
    return Block(axes, tuple(extents), ordered, tuple(number for number in source if number in inner))


def _larger(extent: int, part: int) -> int:
    """Return the next larger part of an extent that divides it into fewer parts of almost one size."""
    return -(-extent // (-(-extent // part) - 1))


@functools.lru_cache(maxsize=256)
def pitches_of(block: Block, itemsize: int) -> tuple[int, ...]:
    """Return the strides in shared memory of a block's inner axes, in the target's order.

    Elements lie in the source's order. Along each axis that lanes of a warp read, the pitch is chosen for the fewest
    bank conflicts.
    """
    lanes = _lanes([block.extents[number] for number in block.inner])
    pitches = dict.fromkeys(block.inner, 0)
    size = 1
    for number in block.read:
        place = block.inner.index(number)
        tried = [size + extra * max(WORD // itemsize, 1) for extra in range(_PITCHES)]
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
