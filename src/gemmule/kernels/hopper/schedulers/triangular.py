"""Triangular tile scheduler: which tiles of the block lower triangle of D a CTA of a cluster computes."""

from __future__ import annotations

import math
from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.schedulers.persistent import PersistentScheduler, WorkRange

#: Groups that the search for a tile's own skips at once.
_JUMPS = (16, 1)


class TriangularScheduler(PersistentScheduler):
    """As `PersistentScheduler`, for the clusters' tiles of which a part is on the diagonal or below it.

    The first `n` rows of clusters' tiles have ``ceil(1 * a / b) + ... + ceil(n * a / b)`` of them, where a cluster's
    tile has a rows for b columns. Groups have a multiple of b rows, so that the number of tiles above one is closed.
    """

    def __init__(
        self, tile_m: int, tile_n: int, group: int, cluster_m: int = 1, cluster_n: int = 1, cluster_k: int = 1
    ) -> None:
        rows, cols = tile_m * cluster_m, tile_n * cluster_n
        # A period of the block lower triangle: so many rows of tiles are as high as so many columns of tiles are wide.
        self.period_cols, self.period_rows = rows // math.gcd(rows, cols), cols // math.gcd(rows, cols)
        super().__init__(
            tile_m, tile_n, -(-group // self.period_rows) * self.period_rows, cluster_m, cluster_n, cluster_k
        )

    @cute.jit
    def tile_range(self, mD: cute.Tensor):
        """Return the indices of this cluster's tiles of the triangle: cluster_id, num_clusters, num_tiles."""
        cta, _, _ = cute.arch.block_idx()
        grid_ctas, _, _ = cute.arch.grid_dim()
        return WorkRange(
            cta // self.cluster_size, grid_ctas // self.cluster_size, self.tiles_per_matrix(mD) * mD.shape[2]
        )

    @cute.jit
    def tiles_per_matrix(self, mD: cute.Tensor):
        """Return how many clusters' tiles each matrix of the batch has: in the last row of tiles all columns."""
        tiles_m, tiles_n = self.tiles(mD)
        periods, rest = (tiles_m - 1) // self.period_rows, (tiles_m - 1) % self.period_rows
        count = self.tiles_above(periods) + tiles_n
        for row in cutlass.range_constexpr(1, self.period_rows):
            if row <= rest:
                count = count + periods * self.period_cols + -(-row * self.period_cols // self.period_rows)
        return count

    def tiles_above(self, periods: Any) -> Any:
        """Return how many tiles there are in the rows of tiles of the first periods."""
        first = sum(-(-row * self.period_cols // self.period_rows) for row in range(1, self.period_rows + 1))
        return periods * first + periods * (periods - 1) // 2 * (self.period_cols * self.period_rows)

    def row_tiles(self, row: Any, tiles_n: Any) -> Any:
        """Return how many tiles a row of tiles has."""
        return cutlass.min(((row + 1) * self.period_cols + self.period_rows - 1) // self.period_rows, tiles_n)

    @cute.jit
    def tile_coord(self, mD: cute.Tensor, tile_index):
        """Return this CTA's tile along M, along N, and the matrix of the batch."""
        tiles_m, tiles_n = self.tiles(mD)
        tiles_per_matrix = self.tiles_per_matrix(mD)
        batch = tile_index // tiles_per_matrix
        inside = tile_index - batch * tiles_per_matrix
        group = Int32(0)
        periods = cutlass.const_expr(self.group // self.period_rows)
        for jump in cutlass.range_constexpr(len(_JUMPS)):
            while self.tiles_above((group + _JUMPS[jump]) * periods) <= inside:
                group = group + _JUMPS[jump]
        inside = inside - self.tiles_above(group * periods)
        first = group * self.group
        rows = cutlass.min(tiles_m - first, self.group)
        # Columns that all rows of the group have are taken downwards first, then what else the lower rows have.
        common = self.row_tiles(first, tiles_n)
        i, j = first + inside % rows, inside // rows
        if inside >= common * rows:
            inside = inside - common * rows
            i = first + 1
            while inside >= self.row_tiles(i, tiles_n) - common:
                inside = inside - (self.row_tiles(i, tiles_n) - common)
                i = i + 1
            j = common + inside
        row, col = self.cta_coord_in_cluster()
        return i * self.cluster_m + row, j * self.cluster_n + col, batch
