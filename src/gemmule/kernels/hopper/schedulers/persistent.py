"""Persistent tile scheduler: which tiles of D a CTA of a cluster computes, one after another, and which part of K."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.raster import grouped_tile


class PersistentScheduler:
    """Every cluster computes every n-th tile; its CTAs lie side by side along M and N, or split a tile's K.

    Parameters
    ----------
    tile_m, tile_n : int
        Tile of a CTA.
    group : int
        Clusters' tiles of a column that follow one another before the next column's (raster).
    cluster_m, cluster_n, cluster_k : int
        CTAs of a cluster along M, N and K.
    """

    #: Whether a piece of work may be a part of a tile's K, which another cluster completes.
    splits_tiles = False

    def __init__(
        self, tile_m: int, tile_n: int, group: int, cluster_m: int = 1, cluster_n: int = 1, cluster_k: int = 1
    ) -> None:
        self.tile_m, self.tile_n, self.group = tile_m, tile_n, group
        self.cluster_m, self.cluster_n, self.cluster_k = cluster_m, cluster_n, cluster_k
        self.size = cluster_m * cluster_n * cluster_k

    @property
    def multicast_ctas(self) -> int:
        """CTAs that read the stages that a CTA loads: itself, and the others of its row and column of the cluster."""
        return self.cluster_m + self.cluster_n - 1

    @cute.jit
    def rank(self):
        """Return this CTA's row and column in its cluster."""
        cta, _, _ = cute.arch.block_idx()
        rank = cta % (self.cluster_m * self.cluster_n)
        return rank % self.cluster_m, rank // self.cluster_m

    @cute.jit
    def rank_k(self):
        """Return this CTA's number among those of its cluster that split a tile's K."""
        cta, _, _ = cute.arch.block_idx()
        return cta % self.cluster_k

    @cute.jit
    def k_range(self, k_tiles):
        """Return the first k-tile of this CTA's part of K, and how many it has."""
        if cutlass.const_expr(self.cluster_k == 1):
            first = Int32(0)
        else:
            rank = self.rank_k()
            first, k_tiles = k_tiles * rank // self.cluster_k, k_tiles * (rank + 1) // self.cluster_k
            k_tiles = k_tiles - first
        return first, k_tiles

    @cute.jit
    def clusters(self, mD: cute.Tensor):
        """Return the number of this CTA's cluster, how many clusters and how many clusters' tiles there are."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        tiles_m, tiles_n = self.tiles(mD)
        cluster, clusters = cta // self.size, ctas // self.size
        return cluster, clusters, tiles_m * tiles_n * _batch(mD)

    def work(self, mD: Any, k_tiles: Any) -> Any:
        """Return this cluster's first piece of work, the step to the next, and the end."""
        del k_tiles
        return self.clusters(mD)

    def piece(self, mD: Any, number: Any, k_range: Any) -> Any:
        """Return the tile of a piece of work, (m, n) or (m, n, l), and its k-tiles: the first, and how many."""
        return self.tile(mD, number), k_range

    def k_tiles(self, mD: Any, number: Any, k_tiles: Any) -> Any:
        """Return how many k-tiles a piece of work has; past the end any number."""
        del mD, number
        return k_tiles

    @cute.jit
    def tiles(self, mD: cute.Tensor):
        """Return along M and N how many tiles of whole clusters there are."""
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m * self.cluster_m)
        return tiles_m, cute.ceil_div(mD.shape[1], self.tile_n * self.cluster_n)

    @cute.jit
    def count(self, mD: cute.Tensor):
        """Return how many clusters' tiles D (M, N) or (M, N, L) has."""
        tiles_m, tiles_n = self.tiles(mD)
        return tiles_m * tiles_n * _batch(mD)

    @cute.jit
    def tile(self, mD: cute.Tensor, number):
        """Return this CTA's tile along M, along N, and, where D has a batch, the matrix of it."""
        tiles_m, tiles_n = self.tiles(mD)
        batch: tuple[Any, ...] = ()
        if cutlass.const_expr(cute.rank(mD) == 3):
            batch = (number // (tiles_m * tiles_n),)
            number = number - batch[0] * tiles_m * tiles_n
        i, j = grouped_tile(number, tiles_m, tiles_n, self.group)
        row, col = self.rank()
        return i * self.cluster_m + row, j * self.cluster_n + col, *batch


def _batch(matrices: Any) -> Any:
    """Return how many matrices there are."""
    return matrices.shape[2] if cute.rank(matrices) == 3 else 1
