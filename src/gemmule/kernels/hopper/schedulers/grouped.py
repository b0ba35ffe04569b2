"""Grouped tile schedulers: the tiles of several products, whose ends are in device memory.

The host does not know how many tiles there are. Every CTA reads all ends once. Along M and N, a warp counts the rows or
columns of tiles of each group, and leaves their running sum in shared memory: the group of a tile is the number of sums
that are not beyond it, which a warp counts 32 at a time. Along K all groups have the same tiles, each with k-tiles of
its own. Of single rows, the number of each one's matrix is in device memory instead of ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.schedulers.persistent import KTileRange, PersistentScheduler, WorkRange, WorkTile

from .work_counter import WorkCounter

_WARP = 32


class GroupedWork(NamedTuple):
    """The inputs of a schedule."""

    d: Any  #: Tensor. D, for its extents.
    offsets: Any  #: Tensor. The groups' ends, or the numbers of rows' matrices, in device memory.
    extent: Any  #: Int32. Extent of the divided dimension, or the number of matrices that rows may name.
    #: Tensor or None. In shared memory, for each group the rows or columns of tiles of it and of those before it.
    tile_ends: Any = None
    #: counter, ring: Tensor and Ring, or None. With dynamic scheduling, the counter in device memory, and the indices
    #: in shared memory.
    counter: Any = None
    ring: Any = None


class _Grouped(PersistentScheduler):
    """Bounds of groups.

    Ends beyond the extent are cut off there, and a group that would end before it begins is empty: whatever the offsets
    are, no address is beyond an operand.

    Parameters
    ----------
    dynamic : bool
        Whether CTAs take tiles as they get to them.
    shape : int
        The parameters of `PersistentScheduler`; CTAs of a cluster do not split K.
    """

    def __init__(self, dynamic: bool, *shape: int) -> None:
        super().__init__(*shape)
        self.work_counter = WorkCounter() if dynamic else None

    def schedule_of(self, tma: Any, offsets: Any, table: Any, extent: Any) -> GroupedWork:
        """Return the schedule that the other methods read, where there is no running sum."""
        (offsets, counter), (_, ring) = offsets, table
        return GroupedWork(tma.d.tensor, offsets, extent, None, counter, ring)

    def matrix(self, work: Any, group: Any) -> Any:
        """Return which matrix of an operand that has several a group has: its own."""
        del work
        return group

    def allocate(self, smem: Any) -> Any:
        """Allocate the running sum of the groups' tiles, if there is one, and the ring of dynamic scheduling."""
        table = self.allocate_table(smem)
        return table, self.work_counter and self.work_counter.allocate(smem)

    def allocate_table(self, smem: Any) -> Any:
        """Allocate the running sum of the groups' tiles; None here."""
        del smem

    def init(self, table: Any) -> None:
        """Initialise the barriers of dynamic scheduling's ring, by one thread."""
        if self.work_counter is not None:
            self.work_counter.init_ring(table[1])

    @cute.jit
    def bounds(self, work, group):
        """Return where a group begins, and where it ends; group ``len(offsets)`` is what is beyond the last end."""
        num_groups = work.offsets.shape[0]
        start, end = Int32(0), work.extent
        if group > 0:
            start = cutlass.max(cutlass.min(work.offsets[group - 1], work.extent), 0)
        if group < num_groups:
            end = cutlass.max(cutlass.min(work.offsets[group], work.extent), start)
        return start, end

    def has_matrix(self, work: Any, group: Any) -> Any:
        """Return whether a group has a matrix: what is beyond the last end has none."""
        return group < work.offsets.shape[0]

    @cute.jit
    def k_tiles_of_group(self, work, group, num_k_tiles):
        """Return how many k-tiles tiles of a group have: none where it has no matrix."""
        return num_k_tiles if self.has_matrix(work, group) else Int32(0)

    @cute.jit
    def work_range(self, num_tiles):
        """Return this cluster's indices among so many tiles."""
        cta, _, _ = cute.arch.block_idx()
        grid_ctas, _, _ = cute.arch.grid_dim()
        return WorkRange(cta // self.cluster_size, grid_ctas // self.cluster_size, num_tiles)


class GroupedScheduler(_Grouped):
    """Tiles of groups of rows (``axis`` 0) or columns (1) of D; a tile ends where its group does.

    Rows beyond the last group's end are one more group, without k-tiles, so that D is zero there.

    Parameters
    ----------
    axis : int
        The divided mode of D.
    max_groups : int
        Most groups.
    dynamic, shape
        As of `_Grouped`.
    """

    def __init__(self, axis: int, max_groups: int, dynamic: bool, *shape: int) -> None:
        super().__init__(dynamic, *shape)
        self.axis, self.max_groups = axis, max_groups
        self.step = (self.tile_m * self.cluster_m, self.tile_n * self.cluster_n)[axis]

    def allocate_table(self, smem: Any) -> Any:
        """Allocate the running sum of the groups' tiles."""
        return smem.allocate_tensor(Int32, cute.make_layout(self.max_groups + 1), 4)

    @cute.jit
    def schedule(self, tma, offsets, table):
        """Return the schedule, with the running sum in shared memory; by all threads of the CTA."""
        (offsets, counter), (table, ring) = offsets, table
        work = GroupedWork(tma.d.tensor, offsets, tma.d.tensor.shape[self.axis], table, counter, ring)
        if cute.arch.warp_idx() == 0:
            lane, before, num_groups = cute.arch.lane_idx(), Int32(0), offsets.shape[0]
            for first in cutlass.range(0, num_groups + 1, _WARP, unroll=1):
                group, tiles = first + lane, Int32(0)
                if group <= num_groups:
                    start, end = self.bounds(work, group)
                    tiles = (end - start + (self.step - 1)) // self.step
                for distance in cutlass.range_constexpr(5):
                    lower = cute.arch.shuffle_sync_up(tiles, 1 << distance)
                    if lane >= 1 << distance:
                        tiles = tiles + lower
                tiles = tiles + before
                if group <= num_groups:
                    table[group] = tiles
                before = cute.arch.shuffle_sync(tiles, _WARP - 1)
        cute.arch.sync_threads()
        return work

    @cute.jit
    def across(self, work):
        """Return how many tiles of whole clusters there are along the other mode of D."""
        other = cutlass.const_expr(1 - self.axis)
        step = cutlass.const_expr((self.tile_m * self.cluster_m, self.tile_n * self.cluster_n)[other])
        return cute.ceil_div(work.d.shape[other], step)

    @cute.jit
    def work(self, work, num_k_tiles):
        """Return the indices of this cluster's tiles."""
        del num_k_tiles
        return self.work_range(work.tile_ends[work.offsets.shape[0]] * self.across(work))

    @cute.jit
    def group_of(self, work, work_index):
        """Return the group of a tile, of one past the end the last; by a whole warp."""
        lane, num_groups, group = cute.arch.lane_idx(), work.offsets.shape[0], Int32(0)
        line = work_index // self.across(work)
        for first in cutlass.range(0, num_groups + 1, _WARP, unroll=1):
            # The last one's sum is never counted: a tile past the end is one of the last group's.
            is_before = first + lane < num_groups
            if is_before:
                is_before = work.tile_ends[first + lane] <= line
            group = group + cute.arch.popc(cute.arch.vote_ballot_sync(is_before))
        return group

    @cute.jit
    def work_tile(self, work, work_index, k_range):
        """Return a work tile; its coordinate is that of a tile within the group, and the group."""
        group, across = self.group_of(work, work_index), self.across(work)
        before = Int32(0)
        if group > 0:
            before = work.tile_ends[group - 1]
        along = work.tile_ends[group] - before
        tile_index = work_index - before * across
        if cutlass.const_expr(self.axis == 0):
            i, j = grouped_tile(tile_index, along, across, self.group)
        else:
            i, j = grouped_tile(tile_index, across, along, self.group)
        row, col = self.cta_coord_in_cluster()
        coord = (i * self.cluster_m + row, j * self.cluster_n + col, group)
        return WorkTile(coord, KTileRange(Int32(0), self.k_tiles_of_group(work, group, k_range.num_k_tiles)))

    @cute.jit
    def k_tile_count(self, work, work_index, num_k_tiles):
        """Return how many k-tiles a work tile has; past the end any number."""
        return self.k_tiles_of_group(work, self.group_of(work, work_index), num_k_tiles)


class GroupedKScheduler(_Grouped):
    """All tiles of D (M, N, L), with the k-tiles of the matrix's group.

    Parameters
    ----------
    tile_k : int
        Elements of a k-tile.
    dynamic, shape
        As of `_Grouped`.
    """

    def __init__(self, tile_k: int, dynamic: bool, *shape: int) -> None:
        super().__init__(dynamic, *shape)
        self.tile_k = tile_k

    def schedule(self, tma: Any, offsets: Any, table: Any) -> Any:
        """Return the schedule that the other methods read."""
        return self.schedule_of(tma, offsets, table, tma.a.tensor.shape[1])

    def work(self, work: Any, num_k_tiles: Any) -> Any:
        """Return the indices of this cluster's tiles."""
        del num_k_tiles
        return self.work_range(self.num_tiles(work.d))

    @cute.jit
    def work_tile(self, work, work_index, k_range):
        """Return a work tile; its coordinate is that of a tile, and the group."""
        coord = self.tile_coord(work.d, work_index)
        return WorkTile(coord, KTileRange(Int32(0), self.k_tile_count(work, work_index, k_range.num_k_tiles)))

    @cute.jit
    def k_tile_count(self, work, work_index, num_k_tiles):
        """Return how many k-tiles a work tile has; past the end any number."""
        del num_k_tiles
        tiles_m, tiles_n = self.tiles(work.d)
        group = cutlass.min(work_index // (tiles_m * tiles_n), work.offsets.shape[0] - 1)
        start, end = self.bounds(work, group)
        return (end - start + (self.tile_k - 1)) // self.tile_k


class RowScheduler(_Grouped):
    """Tiles of single rows of D, each of a product with one matrix of B, whose number is in device memory.

    A row whose number is none of a matrix has no k-tile.
    """

    def schedule(self, tma: Any, offsets: Any, table: Any) -> Any:
        """Return the schedule that the other methods read, the number of matrices as `extent`."""
        return self.schedule_of(tma, offsets, table, tma.b.tensor.shape[2])

    def matrix(self, work: Any, group: Any) -> Any:
        """Return the number of a row's matrix."""
        return work.offsets[group]

    @cute.jit
    def has_matrix(self, work, group):
        """Return whether a row has a matrix."""
        number = work.offsets[group]
        return number >= 0 and number < work.extent

    def bounds(self, work: Any, group: Any) -> tuple[Any, Any]:
        """Return the row, and the one behind it."""
        del work
        return group, group + 1

    @cute.jit
    def across(self, work):
        """Return how many tiles of whole clusters a row has."""
        return cute.ceil_div(work.d.shape[1], self.tile_n * self.cluster_n)

    @cute.jit
    def work(self, work, num_k_tiles):
        """Return the indices of this cluster's tiles."""
        del num_k_tiles
        return self.work_range(work.d.shape[0] * self.across(work))

    @cute.jit
    def work_tile(self, work, work_index, k_range):
        """Return a work tile; its coordinate is that of a tile within the row, and the row."""
        row = work_index // self.across(work)
        _, col = self.cta_coord_in_cluster()
        coord = (Int32(0), (work_index - row * self.across(work)) * self.cluster_n + col, row)
        return WorkTile(coord, KTileRange(Int32(0), self.k_tiles_of_group(work, row, k_range.num_k_tiles)))

    @cute.jit
    def k_tile_count(self, work, work_index, num_k_tiles):
        """Return how many k-tiles a work tile has; past the end any number."""
        row = cutlass.min(work_index // self.across(work), work.offsets.shape[0] - 1)
        return self.k_tiles_of_group(work, row, num_k_tiles)
