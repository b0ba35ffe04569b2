"""Merged axes: the rows of a permutation's tiles, and their config."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from gemmule.core.dataclass import dataclass
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.transpose.blocks.block import Axis, axes_of
from gemmule.kernels.transpose.tile_config import SECTOR, WORD, SectorTileConfig, packed_rows

#: Axes of a row of the source and of the target, and of the batch, at most.
LEVELS = 3
# Bytes of a row of the source and of the target, at least: a row of the target has a whole sector.
_LEAST_READ, _LEAST_WRITTEN = 32, 64
# Bytes of the table's entry: the address of a row.
_ENTRY = 8


class Merged(NamedTuple):
    """A permutation as a batch of matrices: axes that follow one another without gaps are one."""

    source: tuple[Axis, ...]  #: Axes of a row of the source, the first one contiguous.
    target: tuple[Axis, ...]  #: The same of the target.
    batch: tuple[Axis, ...]  #: The others.

    @property
    def rows(self) -> int:
        """Return the elements of a row of the source: the rows of the target."""
        return math.prod(axis.extent for axis in self.source)

    @property
    def cols(self) -> int:
        """Return the elements of a row of the target: the rows of the source."""
        return math.prod(axis.extent for axis in self.target)


@functools.lru_cache(maxsize=256)
def merged_of(problem: TransposeProblem, tile: tuple[int, int]) -> Merged | None:
    """Return the merged axes whose matrices fill tiles best; None where a side's elements are not contiguous."""
    axes = axes_of(problem)
    sources, targets = (
        _chain(sorted(axes, key=lambda axis: abs(getattr(axis, side))), side) for side in ("source", "target")
    )
    rows, cols = (least // problem.itemsize for least in (_LEAST_READ, _LEAST_WRITTEN))
    best: Merged | None = None
    least = math.inf
    for count, other in itertools.product(range(1, len(sources) + 1), range(1, len(targets) + 1)):
        source, target = sources[:count], targets[:other]
        batch = tuple(axis for axis in axes if axis not in source and axis not in target)
        found = Merged(source, target, batch)
        if len(batch) > LEVELS or count + other + len(batch) > len(axes) or found.rows < rows or found.cols < cols:
            continue
        waste = 1.0
        for extent, side in zip((found.rows, found.cols), tile, strict=True):
            # Elements of a tile beyond a row, and the sectors that it shares with others.
            waste *= -(-extent // side) * side / extent * (1 + SECTOR / (extent * problem.itemsize))
        if waste < least:
            best, least = found, waste
    return best


def _chain(axes: Sequence[Axis], side: str) -> tuple[Axis, ...]:
    """Return the axes, of those of the shortest strides, that follow one another without gaps from an element on."""
    found: list[Axis] = []
    size = 1
    for axis in axes[:LEVELS]:
        if getattr(axis, side) != size:
            break
        found.append(axis)
        size *= axis.extent
    return tuple(found)


@dataclass(frozen=True)
class MergedConfig(SectorTileConfig):
    """Sector tiles whose rows' addresses are in tables; the group is 1 or more."""

    from_zero: ClassVar[frozenset[str]] = frozenset()

    def merged(self, problem: TransposeProblem) -> Merged:
        """Return the merged axes of a problem that is not refused."""
        found = merged_of(problem, self.tile(problem.itemsize))
        assert found is not None
        return found

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        # An axis of no elements is not among those that are merged.
        if not problem.bytes_min:
            return 0, 1
        merged, (rows, cols) = self.merged(problem), self.tile(problem.itemsize)
        return -(-merged.rows // rows), -(-merged.cols // cols)

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return math.prod(self.tiles(problem)) * math.prod(axis.extent for axis in self.merged(problem).batch), 1, 1

    def shared_bytes(self, itemsize: int) -> int:
        held, rows = self.held(itemsize) * packed_rows(itemsize), self.tile(itemsize)[0]
        tables = held * _ENTRY, (held if itemsize < WORD else WORD) * WORD, rows * _ENTRY
        return sum(-(-size // VECTOR_BYTES) * VECTOR_BYTES for size in tables) + self.tile_bytes(itemsize)
