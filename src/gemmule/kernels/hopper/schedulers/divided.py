"""Scheduler of persistent CTAs whose consumers compute a tile's coordinates by multiplications, not divisions."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.kernels.parts.raster import divided_tile, raster_divisors
from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler, WorkTile


class DividedScheduler(PersistentScheduler):
    """As `PersistentScheduler`, for warpgroups that share a tile, so that both wait for its coordinates.

    And for small tiles, whose divisors are computed before the wait for the predecessor grid.
    """

    def divisors(self, mD: Any) -> tuple[Any, ...]:
        """Return the divisors by which the coordinates of many tiles are cheap."""
        tiles_m, tiles_n = self.tiles(mD)
        return (raster_divisors(tiles_m, tiles_n, self.group),)

    def work_tile(self, mD: Any, work_index: Any, k_range: Any, divisors: Any = None) -> WorkTile:
        """Return a work tile; `divisors` is what `divisors` returned, if anything."""
        if divisors is None:
            return super().work_tile(mD, work_index, k_range)
        return WorkTile(self.divided_coord(mD, work_index, divisors), k_range)

    @cute.jit
    def divided_coord(self, mD: cute.Tensor, tile_index, divisors):
        """Return the coordinates of `tile_coord`."""
        tiles_m, tiles_n = self.tiles(mD)
        batch: tuple[Any, ...] = ()
        if cutlass.const_expr(cute.rank(mD) == 3):
            batch = (divisors.matrix.quotient(tile_index),)
            tile_index = tile_index - batch[0] * tiles_m * tiles_n
        i, j = divided_tile(tile_index, tiles_m, tiles_n, self.group, divisors)
        row, col = self.cta_coord_in_cluster()
        return i * self.cluster_m + row, j * self.cluster_n + col, *batch
