"""Scheduler of persistent CTAs whose tiles at the right edge of D, if they are narrow, come last."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.hopper.schedulers.divided import DividedScheduler
from gemmule.kernels.parts.raster import divided_tile, grouped_tile, raster_divisors
from gemmule.kernels.parts.schedulers.persistent import WorkRange, WorkTile


class NarrowEdgeScheduler(DividedScheduler):
    """As `DividedScheduler`, with all narrow tiles behind the others, and the clusters of the last wave in reverse.

    So a cluster that has a tile more than others has a narrow one, or two where these are twice as many.

    Parameters
    ----------
    narrow_n : int
        Columns of a tile, or what is left of D, that make it narrow.
    shape : int
        As of `PersistentScheduler`.
    """

    def __init__(self, narrow_n: int, *shape: int) -> None:
        super().__init__(*shape)
        self.narrow_n = narrow_n

    @cute.jit
    def body(self, mD: cute.Tensor):
        """Return along M and N how many tiles of whole clusters are not narrow, or all where none is."""
        tiles_m, tiles_n = self.tiles(mD)
        if mD.shape[1] - (tiles_n - 1) * (self.tile_n * self.cluster_n) <= self.narrow_n:
            tiles_n -= 1
        return tiles_m, tiles_n

    @cute.jit
    def last_wave(self, mD: cute.Tensor):
        """Return the index of the first work tile of a last wave that is not whole, and the sum of its ends'."""
        _, stride, end = self.tile_range(mD)
        whole = end // stride * stride
        return whole, 2 * whole + stride - 1

    @cute.jit
    def work(self, mD: cute.Tensor, num_k_tiles):
        """Return the indices of this cluster's work tiles."""
        del num_k_tiles
        start, stride, end = self.tile_range(mD)
        whole, both = self.last_wave(mD)
        if both - (whole + start) < end:
            whole += stride
        return WorkRange(start, stride, whole)

    @cute.jit
    def divisors(self, mD: cute.Tensor):
        """Return the numbers by which the coordinates of many tiles are cheap."""
        tiles_m, tiles_n = self.body(mD)
        return raster_divisors(tiles_m, tiles_n, self.group), (tiles_m, tiles_n), self.last_wave(mD)

    def work_tile(
        self, mD: Any, work_index: Any, k_range: Any, divisors: Any = None, body: Any = None, last_wave: Any = None
    ) -> WorkTile:
        """Return a work tile; `divisors`, `body` and `last_wave` are what `divisors` returned, if anything."""
        if divisors is None:
            body, last_wave = self.body(mD), self.last_wave(mD)
        return WorkTile(self.edge_coord(mD, work_index, divisors, body, last_wave), k_range)

    @cute.jit
    def edge_coord(self, mD: cute.Tensor, work_index, divisors, body, last_wave):
        """Return this CTA's tile along M and N, and the matrix, of which there is one."""
        (tiles_m, tiles_n), (first, both) = body, last_wave
        tile_index = Int32(work_index)
        if tile_index >= first:
            tile_index = both - tile_index
        i, j = tile_index - tiles_m * tiles_n, tiles_n
        if i < 0:
            if cutlass.const_expr(divisors is None):
                i, j = grouped_tile(tile_index, tiles_m, tiles_n, self.group)
            else:
                i, j = divided_tile(tile_index, tiles_m, tiles_n, self.group, divisors)
        row, col = self.cta_coord_in_cluster()
        batch: tuple[Any, ...] = ()
        if cutlass.const_expr(cute.rank(mD) == 3):
            batch = (Int32(0),)
        return i * self.cluster_m + row, j * self.cluster_n + col, *batch
