"""Stream-K scheduler: tiles that do not fill a wave are split by k-tiles, so that all clusters end at the same time.

Whole waves of tiles are data-parallel, one tile a cluster. The others are stream-K tiles: between one wave of them and
two, or all tiles where there is not one wave. Their k-tiles, tile after tile, are divided evenly into one contiguous
share a cluster. Where a share begins or ends within a tile, several clusters have partial sums of it. The one with its
last k-tiles is its owner: it adds the partials that the others wrote to a workspace (fix-up), and writes the tile.

Data-parallel tiles come first. Clusters then go through K at the same time, so that what one of them loads from memory
others find in the L2 cache; shares begin at different k, and after them no two clusters would multiply the same k-tiles
at a time. Of its share a cluster begins with the end, which is the only part of a tile that it leaves to another, and
ends with the beginning, the only tile for which it needs others: partials are written before they are read. A cluster
waits only for clusters of lower indices: as long as clusters start in the order of their indices, however few of them
run at the same time, the lowest of those that have not ended can always proceed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from .persistent import KTileRange, WorkRange, WorkTile
from .stream_k_fixup import FixupScheduler


class Division(NamedTuple):
    """The division of all tiles among clusters."""

    data_parallel_tiles: Any  #: Int32. Tiles that each cluster computes whole.
    base_k_tiles: Any  #: Int32. K-tiles of a share.
    remainder: Any  #: Int32. How many clusters, the first ones, have one k-tile more.


class Share(NamedTuple):
    """A cluster's part of the work."""

    #: cluster_id, num_clusters: Int32. Its index, and how many clusters there are.
    cluster_id: Any
    num_clusters: Any
    data_parallel_tiles: Any  #: Int32. Tiles that it computes whole.
    #: begin, end: Int32. Its share of the stream-K tiles' k-tiles, which are numbered tile after tile.
    begin: Any
    end: Any


class StreamKScheduler(FixupScheduler):
    """Every cluster computes whole tiles of the data-parallel waves, and its share of the stream-K tiles."""

    @cute.jit
    def work(self, mD: cute.Tensor, num_k_tiles):
        """Return the indices of this cluster's work tiles."""
        share = self.share(mD, num_k_tiles)
        num_work_tiles = share.data_parallel_tiles
        if share.end > share.begin:
            num_work_tiles = num_work_tiles + self.tile_of(mD, share.end - 1, num_k_tiles)
            num_work_tiles = num_work_tiles - self.tile_of(mD, share.begin, num_k_tiles) + 1
        return WorkRange(Int32(0), Int32(1), num_work_tiles)

    @cute.jit
    def work_tile(self, mD: cute.Tensor, work_index, k_range):
        """Return a work tile; `k_range` is all of K."""
        tile_index, work_k_range = self.linear_work_tile(mD, work_index, k_range.num_k_tiles)
        return WorkTile(self.tile_coord(mD, tile_index), work_k_range)

    @cute.jit
    def k_tile_count(self, mD: cute.Tensor, work_index, num_k_tiles):
        """Return how many k-tiles a work tile has; past the end any number."""
        _, work_k_range = self.linear_work_tile(mD, work_index, num_k_tiles)
        return work_k_range.num_k_tiles

    @cute.jit
    def linear_work_tile(self, mD: cute.Tensor, work_index, num_k_tiles):
        """Return the index of a work tile's tile, and its k-tiles.

        First come the data-parallel tiles, then those of the share, the last one first.
        """
        cluster_id, num_clusters, data_parallel_tiles, begin, end = self.share(mD, num_k_tiles)
        tile_index, start, count = cluster_id + work_index * num_clusters, Int32(0), num_k_tiles
        if work_index >= data_parallel_tiles:
            stream_k_index = self.tile_of(mD, end - 1, num_k_tiles) - (work_index - data_parallel_tiles)
            start = cutlass.max(begin - stream_k_index * num_k_tiles, 0)
            count = cutlass.min(end - stream_k_index * num_k_tiles, num_k_tiles) - start
            tile_index = data_parallel_tiles * num_clusters + stream_k_index
        return tile_index, KTileRange(start, count)

    @cute.jit
    def fixup(self, workspaces, accumulators: cute.Tensor, mD: cute.Tensor, k_range, num_k_tiles, ctx):
        """Add its peers' partials to the owner's accumulators, or write a peer's partials; return whether it owns.

        Parameters
        ----------
        workspaces : tuple of Tensor
            As of `StreamKPartials`.
        accumulators : Tensor
            This thread's accumulators, flat.
        k_range : KTileRange
            The work tile's k-tiles.
        num_k_tiles : Int32
            Number of k-tiles of K.
        ctx : EpilogueContext
            For the warpgroup and its named barrier.
        """
        start, count = k_range
        cta, _, _ = cute.arch.block_idx()
        warpgroup_idx = self.warpgroup_idx(ctx)
        is_owner = start + count == num_k_tiles
        if is_owner:
            if start > 0:
                first = self.first_peer(mD, num_k_tiles) * self.cluster_size + cta % self.cluster_size
                peers = WorkRange(first, self.cluster_size, cta)
                self.partials.add(workspaces, accumulators, peers, warpgroup_idx, ctx.barrier_id)
        else:
            self.partials.write(workspaces, accumulators, cta, warpgroup_idx, ctx.barrier_id)
        return is_owner

    @cute.jit
    def first_peer(self, mD: cute.Tensor, num_k_tiles):
        """Return the cluster that has the first k-tiles of the tile in which this cluster's share begins."""
        begin = self.share(mD, num_k_tiles).begin
        _, base_k_tiles, remainder = self.division(mD, num_k_tiles)
        tile_begin = self.tile_of(mD, begin, num_k_tiles) * num_k_tiles
        # The shares of the first clusters are a k-tile longer.
        peer = tile_begin // (base_k_tiles + 1)
        if peer >= remainder:
            peer = remainder + (tile_begin - remainder * (base_k_tiles + 1)) // base_k_tiles
        return peer

    def tile_of(self, mD: Any, k_tile: Any, num_k_tiles: Any) -> Any:
        """Return which stream-K tile has a k-tile of the shares."""
        del mD
        return k_tile // num_k_tiles

    @cute.jit
    def share(self, mD: cute.Tensor, num_k_tiles):
        """Return this cluster's part of the work."""
        cluster_id, num_clusters, _ = self.tile_range(mD)
        data_parallel_tiles, base_k_tiles, remainder = self.division(mD, num_k_tiles)
        begin = cluster_id * base_k_tiles + cutlass.min(cluster_id, remainder)
        end = begin + base_k_tiles
        if cluster_id < remainder:
            end = end + 1
        return Share(cluster_id, num_clusters, data_parallel_tiles, begin, end)

    @cute.jit
    def division(self, mD: cute.Tensor, num_k_tiles):
        """Return how all tiles are divided among the clusters."""
        _, num_clusters, num_tiles = self.tile_range(mD)
        data_parallel_tiles = num_tiles // num_clusters
        if data_parallel_tiles * num_clusters < num_tiles and data_parallel_tiles > 0:
            data_parallel_tiles = data_parallel_tiles - 1
        shared_k_tiles = (num_tiles - data_parallel_tiles * num_clusters) * num_k_tiles
        return Division(data_parallel_tiles, shared_k_tiles // num_clusters, shared_k_tiles % num_clusters)
