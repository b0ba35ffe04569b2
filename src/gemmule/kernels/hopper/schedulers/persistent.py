"""Which tiles of the result a CTA of a cluster computes, one after another, and which part of K."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.raster import grouped_tile


class ClusterTiles:
    """Clusters take tiles in turns; their CTAs lie side by side along M and N, or share a tile along K.

    Parameters
    ----------
    tile_m, tile_n : int
        Tile of a CTA.
    cluster_m, cluster_n, cluster_k : int
        CTAs of a cluster along M, N and K.
    group : int
        Clusters' tiles that are taken downwards before they go to the right.
    """

    #: Whether a piece of work may be a part of a tile's sum, which another cluster finishes.
    splits = False

    def __init__(self, tile_m: int, tile_n: int, cluster_m: int, cluster_n: int, cluster_k: int, group: int) -> None:
        self.tile_m, self.tile_n, self.group = tile_m, tile_n, group
        self.cluster_m, self.cluster_n, self.cluster_k = cluster_m, cluster_n, cluster_k
        self.size = cluster_m * cluster_n * cluster_k

    @cute.jit
    def rank(self):
        """Return this CTA's row and column in its cluster."""
        cta, _, _ = cute.arch.block_idx()
        rank = cta % (self.cluster_m * self.cluster_n)
        return rank % self.cluster_m, rank // self.cluster_m

    @cute.jit
    def part_of_k(self, slices):
        """Return the first slice of this CTA's part of K, and how many it has."""
        if cutlass.const_expr(self.cluster_k == 1):
            first = Int32(0)
        else:
            cta, _, _ = cute.arch.block_idx()
            rank = cta % self.cluster_k
            first, slices = slices * rank // self.cluster_k, slices * (rank + 1) // self.cluster_k
            slices = slices - first
        return first, slices

    @cute.jit
    def share(self, mD: cute.Tensor):
        """Return the number of this CTA's cluster, how many clusters and how many clusters' tiles there are."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        tiles_m, tiles_n = self.tiles(mD)
        return cta // self.size, ctas // self.size, tiles_m * tiles_n * mD.shape[2]

    def turns(self, mD: Any, slices: Any) -> Any:
        """Return the first of this cluster's pieces of work, the step to the next, and the end."""
        del slices
        return self.share(mD)

    def work(self, mD: Any, number: Any, first: Any, slices: Any) -> Any:
        """Return a piece's tile, along M, along N and in the batch, its first slice, and how many it has."""
        return (*self.tile(mD, number), first, slices)

    def passed(self, mD: Any, number: Any, slices: Any) -> Any:
        """Return the slices of a piece; of one behind the end any number."""
        del mD, number
        return slices

    @cute.jit
    def tiles(self, mD: cute.Tensor):
        """Return along M and N how many tiles of whole clusters there are."""
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m * self.cluster_m)
        return tiles_m, cute.ceil_div(mD.shape[1], self.tile_n * self.cluster_n)

    @cute.jit
    def tile(self, mD: cute.Tensor, number):
        """Return this CTA's tile along M, along N, and the matrix of the batch."""
        tiles_m, tiles_n = self.tiles(mD)
        batch = number // (tiles_m * tiles_n)
        i, j = grouped_tile(number - batch * tiles_m * tiles_n, tiles_m, tiles_n, self.group)
        row, col = self.rank()
        return i * self.cluster_m + row, j * self.cluster_n + col, batch
