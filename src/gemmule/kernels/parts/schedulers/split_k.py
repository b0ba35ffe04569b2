"""Split-K scheduler: a tile's k-tiles are divided evenly among several clusters, whose partial sums the last one adds.

A launch has whole parts for all tiles, or one part a tile: with fewer tiles than half of the clusters that run at once,
the clusters' number is a multiple of the tiles', and each has one part.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

from .persistent import KTileRange, WorkRange
from .stream_k import StreamKScheduler


class SplitKScheduler(StreamKScheduler):
    """As `StreamKScheduler`, with parts that are as long as one another and none of which is of two tiles.

    A cluster waits only for clusters of lower indices, as there.
    """

    @cute.jit
    def splits(self, mD: cute.Tensor):
        """Return the parts of a tile's K."""
        _, num_clusters, num_tiles = self.tile_range(mD)
        return cutlass.max(num_clusters // num_tiles, 1)

    @cute.jit
    def work(self, mD: cute.Tensor, num_k_tiles):
        """Return the indices of this cluster's work tiles."""
        cluster_id, num_clusters, num_tiles = self.tile_range(mD)
        return WorkRange(cluster_id, num_clusters, num_tiles * self.splits(mD))

    @cute.jit
    def linear_work_tile(self, mD: cute.Tensor, work_index, num_k_tiles):
        """Return the index of a work tile's tile, and its k-tiles."""
        splits = self.splits(mD)
        tile_index, part = work_index // splits, work_index % splits
        start = num_k_tiles * part // splits
        return tile_index, KTileRange(start, num_k_tiles * (part + 1) // splits - start)

    @cute.jit
    def first_peer(self, mD: cute.Tensor, num_k_tiles):
        """Return the cluster that has the first k-tiles of this cluster's tile."""
        cluster_id, _, _ = self.tile_range(mD)
        return cluster_id - (self.splits(mD) - 1)
