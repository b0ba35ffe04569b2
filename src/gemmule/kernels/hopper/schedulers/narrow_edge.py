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
    def whole_waves(self, mD: cute.Tensor):
        """Return how many work tiles there are in whole waves."""
        _, stride, end = self.tile_range(mD)
        return end // stride * stride

    @cute.jit
    def work(self, mD: cute.Tensor, num_k_tiles):
        """Return the indices of this cluster's work tiles."""
        del num_k_tiles
        start, stride, end = self.tile_range(mD)
        whole = self.whole_waves(mD)
        if whole + stride - 1 - start < end:
            whole += stride
        return WorkRange(start, stride, whole)

    def divisors(self, mD: Any) -> tuple[Any, ...]:
        """Return the numbers by which the coordinates of many tiles are cheap."""
        return raster_divisors(*self.body(mD), self.group), self.whole_waves(mD)

    def work_tile(self, mD: Any, work_index: Any, k_range: Any, divisors: Any = None, whole: Any = None) -> WorkTile:
        """Return a work tile; `divisors` and `whole` are what `divisors` returned, if anything."""
        whole = self.whole_waves(mD) if whole is None else whole
        return WorkTile(self.edge_coord(mD, work_index, divisors, whole), k_range)

    @cute.jit
    def edge_coord(self, mD: cute.Tensor, work_index, divisors, whole):
        """Return this CTA's tile along M and N, and the matrix, of which there is one."""
        _, stride, _ = self.tile_range(mD)
        tiles_m, tiles_n = self.body(mD)
        tile_index = Int32(work_index)
        if tile_index >= whole:
            tile_index = 2 * whole + stride - 1 - tile_index
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
