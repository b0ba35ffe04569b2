"""Persistent tile scheduler: which tiles of D a CTA of a cluster computes, one after another, and which part of K."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.raster import grouped_tile


class WorkRange(NamedTuple):
    """Indices of a cluster's work: the first, the stride to the next, and the end."""

    start: Any
    stride: Any
    end: Any


class KTileRange(NamedTuple):
    """K-tiles of a tile: the first, and how many."""

    start: Any
    num_k_tiles: Any


class WorkTile(NamedTuple):
    """A tile's coordinate (m, n) or (m, n, l), and the k-tiles of it that this CTA multiplies."""

    coord: Any
    k_range: KTileRange


class PersistentScheduler:
    """Every cluster computes every n-th tile; its CTAs are adjacent along M and N, or split a tile's K.

    Parameters
    ----------
    tile_m, tile_n : int
        Tile of a CTA.
    group : int
        Clusters' tiles that the raster goes down before it goes to the right (CUTLASS: swizzle size).
    cluster_m, cluster_n, cluster_k : int
        CTAs of a cluster along M, N and K.
    """

    #: Whether a work tile may be a part of a tile's K, whose partial sums another cluster adds (stream-K fix-up).
    requires_fixup = False

    def __init__(
        self, tile_m: int, tile_n: int, group: int, cluster_m: int = 1, cluster_n: int = 1, cluster_k: int = 1
    ) -> None:
        self.tile_m, self.tile_n, self.group = tile_m, tile_n, group
        self.cluster_m, self.cluster_n, self.cluster_k = cluster_m, cluster_n, cluster_k
        self.cluster_size = cluster_m * cluster_n * cluster_k

    @property
    def is_multicast(self) -> bool:
        """Whether CTAs of a cluster share loads, so that other CTAs arrive at a CTA's empty barriers."""
        return self.cluster_m * self.cluster_n > 1

    @property
    def empty_arrival_ctas(self) -> int:
        """CTAs that arrive at a CTA's empty barriers: itself, and the others of its row and column of the cluster."""
        return self.cluster_m + self.cluster_n - 1

    def allocate(self, smem: Any) -> Any:
        """Allocate what the schedule has in shared memory; None here."""
        del smem

    def init(self, table: Any) -> None:
        """Initialise the barriers in what `allocate` returned, by one thread; there are none here."""
        del table

    def schedule(self, tma: Any, offsets: Any, table: Any) -> Any:
        """Return the schedule that the other methods read, by all threads; here D, for its extents.

        Parameters
        ----------
        tma : Matrices
            The matrices of the launch.
        offsets, table : Tensor or None
            For grouped products only: the groups' ends, and the result of `allocate`.
        """
        del offsets, table
        return tma.d.tensor

    @cute.jit
    def cta_coord_in_cluster(self):
        """Return this CTA's row and column in its cluster."""
        cta, _, _ = cute.arch.block_idx()
        rank = cta % (self.cluster_m * self.cluster_n)
        return rank % self.cluster_m, rank // self.cluster_m

    @cute.jit
    def cta_k_in_cluster(self):
        """Return this CTA's index among those of its cluster that split a tile's K.

        CTAs of one index, which share loads, have contiguous ranks.
        """
        cta, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(self.is_multicast):
            cta = cta % self.cluster_size // (self.cluster_m * self.cluster_n)
        else:
            cta = cta % self.cluster_k
        return cta

    @cute.jit
    def first_of_part(self):
        """Return the rank in the cluster of the first CTA that has the same part of K as this one."""
        if cutlass.const_expr(self.cluster_k == 1):
            return 0
        return self.cta_k_in_cluster() * (self.cluster_m * self.cluster_n)

    @cute.jit
    def k_range(self, num_k_tiles):
        """Return the k-tiles of this CTA's part of K."""
        if cutlass.const_expr(self.cluster_k == 1):
            start = Int32(0)
        else:
            cta_k = self.cta_k_in_cluster()
            start, num_k_tiles = num_k_tiles * cta_k // self.cluster_k, num_k_tiles * (cta_k + 1) // self.cluster_k
            num_k_tiles = num_k_tiles - start
        return KTileRange(start, num_k_tiles)

    @cute.jit
    def tile_range(self, mD: cute.Tensor):
        """Return the indices of this cluster's data-parallel tiles: cluster_id, num_clusters, num_tiles."""
        cta, _, _ = cute.arch.block_idx()
        grid_ctas, _, _ = cute.arch.grid_dim()
        tiles_m, tiles_n = self.tiles(mD)
        cluster_id, num_clusters = cta // self.cluster_size, grid_ctas // self.cluster_size
        return WorkRange(cluster_id, num_clusters, tiles_m * tiles_n * _batch(mD))

    def work(self, mD: Any, num_k_tiles: Any) -> Any:
        """Return the indices of this cluster's work tiles."""
        del num_k_tiles
        return self.tile_range(mD)

    def work_tile(self, mD: Any, work_index: Any, k_range: Any) -> WorkTile:
        """Return a work tile; `k_range` is this CTA's part of K."""
        return WorkTile(self.tile_coord(mD, work_index), k_range)

    def divisors(self, mD: Any) -> tuple[Any, ...]:
        """Return further arguments of `work_tile`, for consumers of many tiles; none here."""
        del mD
        return ()

    def k_tile_count(self, mD: Any, work_index: Any, num_k_tiles: Any) -> Any:
        """Return how many k-tiles a work tile has; past the end any number."""
        del mD, work_index
        return num_k_tiles

    @cute.jit
    def tiles(self, mD: cute.Tensor):
        """Return along M and N how many tiles of whole clusters there are."""
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m * self.cluster_m)
        return tiles_m, cute.ceil_div(mD.shape[1], self.tile_n * self.cluster_n)

    @cute.jit
    def num_tiles(self, mD: cute.Tensor):
        """Return how many clusters' tiles D (M, N) or (M, N, L) has."""
        tiles_m, tiles_n = self.tiles(mD)
        return tiles_m * tiles_n * _batch(mD)

    @cute.jit
    def tile_coord(self, mD: cute.Tensor, tile_index):
        """Return this CTA's tile along M, along N, and, where D has a batch, the matrix of it."""
        tiles_m, tiles_n = self.tiles(mD)
        batch: tuple[Any, ...] = ()
        if cutlass.const_expr(cute.rank(mD) == 3):
            batch = (tile_index // (tiles_m * tiles_n),)
            tile_index = tile_index - batch[0] * tiles_m * tiles_n
        i, j = grouped_tile(tile_index, tiles_m, tiles_n, self.group)
        row, col = self.cta_coord_in_cluster()
        return i * self.cluster_m + row, j * self.cluster_n + col, *batch


def _batch(matrices: Any) -> Any:
    """Return how many matrices there are."""
    return matrices.shape[2] if cute.rank(matrices) == 3 else 1
