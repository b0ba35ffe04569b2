"""Scheduler of persistent CTAs of which other ones than the first take the tiles of a last wave that is not whole."""

from __future__ import annotations

from typing import Any

from cutlass import cute

from gemmule.kernels.hopper.schedulers.divided import DividedScheduler
from gemmule.kernels.parts.schedulers.persistent import WorkRange, WorkTile


class ReversedWaveScheduler(DividedScheduler):
    """As `DividedScheduler`, with the clusters of the last wave in reverse order.

    The last tiles of D are at its right edge, and so are those before them: where these are narrow, the clusters that
    have one take the last ones, too.
    """

    @cute.jit
    def work(self, mD: cute.Tensor, num_k_tiles):
        """Return the indices of this cluster's work tiles."""
        del num_k_tiles
        start, stride, end = self.tile_range(mD)
        whole = end // stride * stride
        if whole + stride - 1 - start < end:
            whole += stride
        return WorkRange(start, stride, whole)

    def divisors(self, mD: Any) -> tuple[Any, ...]:
        """Return the divisors of `DividedScheduler`, and those numbers by which work tiles are found in reverse."""
        return *super().divisors(mD), self.last_wave(mD)

    @cute.jit
    def last_wave(self, mD: cute.Tensor):
        """Return the index of the first work tile of the last wave, and the sum of its first and last."""
        _, stride, end = self.tile_range(mD)
        whole = end // stride * stride
        return whole, 2 * whole + stride - 1

    def work_tile(
        self, mD: Any, work_index: Any, k_range: Any, divisors: Any = None, last_wave: Any = None
    ) -> WorkTile:
        """Return a work tile; `divisors` and `last_wave` are what `divisors` returned, if anything."""
        return super().work_tile(mD, self.tile_of(mD, work_index, last_wave), k_range, divisors)

    @cute.jit
    def tile_of(self, mD: cute.Tensor, work_index, last_wave):
        """Return the index of a work tile's tile."""
        first, both = self.last_wave(mD) if last_wave is None else last_wave
        tile_index = work_index
        if work_index >= first:
            tile_index = both - work_index
        return tile_index
