"""Scheduler of persistent CTAs whose tiles at the right edge of D, if they are narrow, come last."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.hopper.schedulers.divided import DividedScheduler
from gemmule.kernels.parts.raster import divided_tile, grouped_tile, raster_divisors
from gemmule.kernels.parts.schedulers.persistent import WorkRange, WorkTile


class NarrowEdgeScheduler(DividedScheduler):
    """As `DividedScheduler`, with narrow tiles behind all others, and CTAs in reverse order in the last wave.

    So the tile that a CTA has more than others is a narrow one, and of few such CTAs the tile before it is, too.

    Parameters
    ----------
    narrow_n : int
        Columns that D has left at most where a tile is narrow.
    shape : int
        As of `PersistentScheduler`, without clusters.
    """

    def __init__(self, narrow_n: int, *shape: int) -> None:
        super().__init__(*shape)
        self.narrow_n = narrow_n

    @cute.jit
    def whole_tiles(self, mD: cute.Tensor):
        """Return along M and N how many tiles are not narrow."""
        tiles_m, tiles_n = self.tiles(mD)
        if mD.shape[1] - (tiles_n - 1) * self.tile_n <= self.narrow_n:
            tiles_n -= 1
        return tiles_m, tiles_n

    @cute.jit
    def whole_waves(self, mD: cute.Tensor):
        """Return how many tiles there are in whole waves."""
        _, stride, end = self.tile_range(mD)
        return end // stride * stride

    @cute.jit
    def work(self, mD: cute.Tensor, num_k_tiles):
        """Return the indices of this CTA's work tiles."""
        del num_k_tiles
        start, stride, end = self.tile_range(mD)
        whole = self.whole_waves(mD)
        if whole + stride - 1 - start < end:
            whole += stride
        return WorkRange(start, stride, whole)

    def divisors(self, mD: Any) -> tuple[Any, ...]:
        """Return the numbers by which the coordinates of many tiles are cheap."""
        tiles_m, tiles_n = self.whole_tiles(mD)
        # Of narrow tiles alone nobody reads them, but to divide by 0 is undefined.
        return raster_divisors(tiles_m, cutlass.max(tiles_n, 1), self.group), self.whole_waves(mD)

    def work_tile(self, mD: Any, work_index: Any, k_range: Any, divisors: Any = None, whole: Any = None) -> WorkTile:
        """Return a work tile; `divisors` and `whole` are what `divisors` returned, if anything."""
        whole = self.whole_waves(mD) if whole is None else whole
        return WorkTile(self.edge_coord(mD, work_index, divisors, whole), k_range)

    @cute.jit
    def edge_coord(self, mD: cute.Tensor, work_index, divisors, whole):
        """Return a tile's index along M and along N, and that of the matrix, of which there is one."""
        _, stride, _ = self.tile_range(mD)
        tiles_m, tiles_n = self.whole_tiles(mD)
        tile_index = Int32(work_index)
        if tile_index >= whole:
            tile_index = 2 * whole + stride - 1 - tile_index
        i, j = tile_index - tiles_m * tiles_n, tiles_n
        if i < 0:
            if cutlass.const_expr(divisors is None):
                i, j = grouped_tile(tile_index, tiles_m, tiles_n, self.group)
            else:
                i, j = divided_tile(tile_index, tiles_m, tiles_n, self.group, divisors)
        return i, j, Int32(0)
