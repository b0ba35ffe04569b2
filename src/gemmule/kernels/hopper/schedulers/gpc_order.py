"""Scheduler of persistent CTAs whose clusters take tiles in the order of where they lie, by GPCs that share loads.

The L2 cache answers SMs near each other that load the same k-tile at the same time once. The host knows in which order
a GPU places the clusters of a launch, and gives a permutation of their indices: another order costs time only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from gemmule.kernels.parts.schedulers.persistent import WorkRange

from .divided import DividedScheduler

#: Indices of a 64-bit word, of a byte each.
_OF_WORD = 8


def fake_order(words: int) -> tuple[Int64, ...] | None:
    """Return the words of a permutation, for the compiler; None for none."""
    return tuple(Int64(0) for _ in range(words)) or None


class OrderedWork(NamedTuple):
    """The inputs of a schedule."""

    d: Any  #: Tensor. D, for its extents.
    place: Any  #: Int32. This cluster's index among those of the launch, in the order of their places.


class GpcOrderScheduler(DividedScheduler):
    """As `DividedScheduler` or, without `divides`, `PersistentScheduler`, with a permutation of the clusters.

    Parameters
    ----------
    divides : bool
        Whether coordinates are computed by multiplications.
    shape : int
        As of `PersistentScheduler`.
    """

    def __init__(self, divides: bool, *shape: int) -> None:
        super().__init__(*shape)
        self.divides = divides

    @cute.jit
    def place(self, words):
        """Return the index of this cluster in the permutation: a byte of 64-bit words."""
        cta, _, _ = cute.arch.block_idx()
        cluster_id = cta // self.cluster_size
        word = Int64(words[0])
        for number in cutlass.range_constexpr(1, len(words)):
            word = Int64(words[number]) if cluster_id >= number * _OF_WORD else word
        return Int32((word >> Int64(cluster_id % _OF_WORD * 8)) & Int64(255))

    def schedule(self, tma: Any, offsets: Any, table: Any) -> OrderedWork:
        """Return the schedule that the other methods read; `offsets` are the words of the permutation."""
        del table
        return OrderedWork(tma.d.tensor, self.place(offsets))

    def work(self, work: Any, num_k_tiles: Any) -> WorkRange:
        """Return the indices of this cluster's work tiles."""
        del num_k_tiles
        _, stride, end = self.tile_range(work.d)
        return WorkRange(work.place, stride, end)

    def divisors(self, mD: Any) -> tuple[Any, ...]:
        """Return the divisors by which the coordinates of many tiles are cheap, if there are any."""
        return super().divisors(mD.d if isinstance(mD, OrderedWork) else mD) if self.divides else ()

    def tile_coord(self, work: Any, tile_index: Any) -> Any:
        """Return this CTA's tile."""
        return super().tile_coord(work.d, tile_index)

    def divided_coord(self, work: Any, tile_index: Any, divisors: Any) -> Any:
        """Return this CTA's tile, by multiplications."""
        return super().divided_coord(work.d, tile_index, divisors)
