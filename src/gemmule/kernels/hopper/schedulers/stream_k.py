"""Stream-K scheduler: tiles that do not fill a wave are split by k-tiles, so that all clusters end at the same time.

Whole waves of tiles are data-parallel, one tile a cluster. The others are stream-K tiles: between one wave of them and
two, or all tiles where there is not one wave. Their k-tiles, tile after tile, are divided evenly into one contiguous
share a cluster. Where a share begins or ends within a tile, several clusters have partial sums of it. The one with its
last k-tiles is its owner: it adds the partials that the others wrote to a workspace (fix-up), and writes the tile.

A cluster begins with the end of its share, which is the only part of a tile that it leaves to another, and ends with
the beginning, the only tile for which it needs others. So partials are written long before they are read. A cluster
waits only for clusters of lower numbers: as long as clusters start in the order of their numbers, however few of them
run at the same time, the lowest of those that have not ended can always proceed.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from .persistent import PersistentScheduler
from .stream_k_fixup import StreamKPartials


class StreamKScheduler(PersistentScheduler):
    """Every cluster computes whole tiles of the data-parallel waves, and its share of the stream-K tiles.

    Parameters
    ----------
    warpgroups : int
        Warpgroups that share a CTA's tile.
    shape : int
        The parameters of `PersistentScheduler`; CTAs of a cluster do not split K.
    """

    splits_tiles = True

    def __init__(self, warpgroups: int, *shape: int) -> None:
        super().__init__(*shape)
        self.partials = StreamKPartials(warpgroups)

    @cute.jit
    def work(self, mD: cute.Tensor, k_tiles):
        """Return this cluster's first piece of work, the step to the next, and the end."""
        _, _, whole, begin, end = self.share(mD, k_tiles)
        pieces = whole
        if end > begin:
            pieces = pieces + (end - 1) // k_tiles - begin // k_tiles + 1
        return Int32(0), Int32(1), pieces

    @cute.jit
    def piece(self, mD: cute.Tensor, number, k_range):
        """Return the tile of a piece of work, (m, n, l), and its k-tiles: the first, and how many."""
        tile, first, count = self.part(mD, number, k_range[1])
        return self.tile(mD, tile), (first, count)

    @cute.jit
    def k_tiles(self, mD: cute.Tensor, number, k_tiles):
        """Return how many k-tiles a piece of work has; past the end any number."""
        _, _, count = self.part(mD, number, k_tiles)
        return count

    @cute.jit
    def part(self, mD: cute.Tensor, number, k_tiles):
        """Return the number of a piece's tile, its first k-tile, and how many it has.

        First comes the last tile of the share, then the data-parallel tiles, then the other tiles of the share.
        """
        cluster, clusters, whole, begin, end = self.share(mD, k_tiles)
        tile, first, count = cluster + number * clusters, Int32(0), k_tiles
        if end > begin:
            tile = tile - clusters
            if number == 0 or number > whole:
                place = (end - 1) // k_tiles
                if number > 0:
                    place = place - (number - whole)
                first = cutlass.max(begin - place * k_tiles, 0)
                count = cutlass.min(end - place * k_tiles, k_tiles) - first
                tile = whole * clusters + place
        return tile, first, count

    @cute.jit
    def complete(self, workspaces, accumulators: cute.Tensor, mD: cute.Tensor, part, k_tiles, ctx):
        """Add the other partials of a piece's tile and return True, or write these for its owner and return False.

        Parameters
        ----------
        workspaces : tuple of Tensor
            As of `StreamKPartials`.
        accumulators : Tensor
            This thread's accumulators, flat.
        part : tuple of Int32
            The piece's first k-tile and how many it has.
        k_tiles : Int32
            How many K has.
        ctx : EpilogueContext
            For the warpgroup and its named barrier.
        """
        first, count = part
        cta, _, _ = cute.arch.block_idx()
        warpgroup_idx = ctx.warpgroup_idx if self.partials.warpgroups > 1 else 0
        owns = first + count == k_tiles
        if owns:
            if first > 0:
                slots = (self.first_sharer(mD, k_tiles) * self.size + cta % self.size, self.size, cta)
                self.partials.add(workspaces, accumulators, slots, warpgroup_idx, ctx.barrier_id)
        else:
            self.partials.write(workspaces, accumulators, cta, warpgroup_idx, ctx.barrier_id)
        return owns

    @cute.jit
    def first_sharer(self, mD: cute.Tensor, k_tiles):
        """Return the cluster that has the first k-tiles of the tile in which this cluster's share begins."""
        _, _, _, begin, _ = self.share(mD, k_tiles)
        _, least, more = self.shares(mD, k_tiles)
        start = begin // k_tiles * k_tiles
        # The shares of the first clusters are a k-tile longer.
        found = start // (least + 1)
        if found >= more:
            found = more + (start - more * (least + 1)) // least
        return found

    @cute.jit
    def share(self, mD: cute.Tensor, k_tiles):
        """Return this cluster's number, how many there are, its data-parallel tiles, and its share's begin and end."""
        cluster, clusters, _ = self.clusters(mD)
        whole, least, more = self.shares(mD, k_tiles)
        begin = cluster * least + cutlass.min(cluster, more)
        end = begin + least
        if cluster < more:
            end = end + 1
        return cluster, clusters, whole, begin, end

    @cute.jit
    def shares(self, mD: cute.Tensor, k_tiles):
        """Return each cluster's data-parallel tiles, the k-tiles of a share, and how many shares have one more."""
        _, clusters, tiles = self.clusters(mD)
        whole = tiles // clusters
        if whole * clusters < tiles and whole > 0:
            whole = whole - 1
        total = (tiles - whole * clusters) * k_tiles
        return whole, total // clusters, total % clusters
