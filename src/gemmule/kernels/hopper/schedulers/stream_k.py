"""Stream-K: tiles that do not fill a wave are shared slice by slice, so that all clusters end at the same time.

Whole waves of tiles are computed as ever, one tile a cluster. The slices of the tiles that are left stand in a line,
tile after tile: between one wave of tiles and two, or all where there is not one. They are shared out evenly, in the
order of the line. Where a share begins or ends within a tile, several clusters have parts of its sum. The one with its
last slices is its owner: it adds what the others left in a workspace, and writes the tile.

A cluster begins with the end of its share, which is the only part of a tile that it leaves to another, and ends with
the beginning, the only tile for which it needs others. So sums are left long before they are wanted. What a cluster
waits for is left by clusters of lower numbers: as long as clusters begin in the order of their numbers, however few of
them run at the same time, the lowest of those that have not ended can always go on.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

from .persistent import ClusterTiles
from .stream_k_fixup import LeftSums


class StreamK(ClusterTiles):
    """Clusters take whole waves of tiles in turns, and share what is left.

    Parameters
    ----------
    warpgroups : int
        Warpgroups that share a CTA's tile.
    shape : int
        The parameters of `ClusterTiles`; CTAs of a cluster do not share sums.
    """

    splits = True

    def __init__(self, warpgroups: int, *shape: int) -> None:
        super().__init__(*shape)
        self.left = LeftSums(warpgroups)

    @cute.jit
    def turns(self, mD: cute.Tensor, slices):
        """Return the first of this cluster's pieces of work, the step to the next, and the end."""
        _, _, whole, begin, end = self.shares(mD, slices)
        pieces = whole
        if end > begin:
            pieces = pieces + (end - 1) // slices - begin // slices + 1
        return Int32(0), Int32(1), pieces

    @cute.jit
    def work(self, mD: cute.Tensor, number, first, slices):
        """Return a piece's tile, along M, along N and in the batch, its first slice, and how many it has."""
        tile, first, count = self.piece(mD, number, slices)
        tile_m, tile_n, batch = self.tile(mD, tile)
        return tile_m, tile_n, batch, first, count

    @cute.jit
    def passed(self, mD: cute.Tensor, number, slices):
        """Return the slices of a piece; of one behind the end any number."""
        _, _, count = self.piece(mD, number, slices)
        return count

    @cute.jit
    def piece(self, mD: cute.Tensor, number, slices):
        """Return the number of a piece's tile, its first slice, and how many it has.

        First comes the last tile of the share, then the tiles of whole waves, then the other tiles of the share.
        """
        cluster, clusters, whole, begin, end = self.shares(mD, slices)
        tile, first, count = cluster + number * clusters, Int32(0), slices
        if end > begin:
            tile = tile - clusters
            if number == 0 or number > whole:
                place = (end - 1) // slices
                if number > 0:
                    place = place - (number - whole)
                first = cutlass.max(begin - place * slices, 0)
                count = cutlass.min(end - place * slices, slices) - first
                tile = whole * clusters + place
        return tile, first, count

    @cute.jit
    def complete(self, memory, sums: cute.Tensor, mD: cute.Tensor, first, count, slices, warpgroup, barrier):
        """Make the sums of a piece those of all K and return True, or leave them to the owner and return False.

        Parameters
        ----------
        memory : tuple of Tensor
            The workspaces, as of `LeftSums`.
        sums : Tensor
            This thread's sums, flat.
        first, count, slices : Int32
            The piece's first slice and how many it has, and how many K has.
        warpgroup, barrier : Int32
            The warpgroup's number and its named barrier.
        """
        cta, _, _ = cute.arch.block_idx()
        share = warpgroup if self.left.parts > 1 else 0
        owns = first + count == slices
        if owns:
            if first > 0:
                others = self.first_sharer(mD, slices) * self.size + cta % self.size
                self.left.add(memory, sums, others, self.size, cta, share, barrier)
        else:
            self.left.leave(memory, sums, cta, share, barrier)
        return owns

    @cute.jit
    def first_sharer(self, mD: cute.Tensor, slices):
        """Return the cluster that has the first slices of the tile in which this cluster's share begins."""
        _, _, _, begin, _ = self.shares(mD, slices)
        _, least, more = self.line(mD, slices)
        start = begin // slices * slices
        # The shares of the first clusters are a slice longer.
        found = start // (least + 1)
        if found >= more:
            found = more + (start - more * (least + 1)) // least
        return found

    @cute.jit
    def shares(self, mD: cute.Tensor, slices):
        """Return this cluster's number, how many there are, how many whole tiles it has, and its part of the line."""
        cluster, clusters, _ = self.share(mD)
        whole, least, more = self.line(mD, slices)
        begin = cluster * least + cutlass.min(cluster, more)
        end = begin + least
        if cluster < more:
            end = end + 1
        return cluster, clusters, whole, begin, end

    @cute.jit
    def line(self, mD: cute.Tensor, slices):
        """Return how many whole tiles every cluster has, the slices of a share, and how many shares have one more."""
        _, clusters, tiles = self.share(mD)
        whole = tiles // clusters
        if whole * clusters < tiles and whole > 0:
            whole = whole - 1
        line = (tiles - whole * clusters) * slices
        return whole, line // clusters, line % clusters
