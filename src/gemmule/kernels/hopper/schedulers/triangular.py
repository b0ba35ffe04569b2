"""Triangular tile scheduler: which tiles of the block lower triangle of D a CTA of a cluster computes."""

from __future__ import annotations

import math
from typing import Any

import cutlass
from cutlass import Int32, cute

from .persistent import PersistentScheduler

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
        # `along` rows of tiles are as high as `up` columns of tiles are wide.
        self.up, self.along = rows // math.gcd(rows, cols), cols // math.gcd(rows, cols)
        super().__init__(tile_m, tile_n, -(-group // self.along) * self.along, cluster_m, cluster_n, cluster_k)

    @cute.jit
    def clusters(self, mD: cute.Tensor):
        """Return the number of this CTA's cluster, how many clusters and how many clusters' tiles there are."""
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        return cta // self.size, ctas // self.size, self.each(mD) * mD.shape[2]

    @cute.jit
    def each(self, mD: cute.Tensor):
        """Return how many clusters' tiles each matrix of the batch has: in the last row of tiles all columns."""
        tiles_m, tiles_n = self.tiles(mD)
        whole, rest = (tiles_m - 1) // self.along, (tiles_m - 1) % self.along
        found = self.above(whole) + tiles_n
        for row in cutlass.range_constexpr(1, self.along):
            if row <= rest:
                found = found + whole * self.up + -(-row * self.up // self.along)
        return found

    def above(self, periods: Any) -> Any:
        """Return how many tiles there are in the first rows of tiles, `along` for each period."""
        first = sum(-(-row * self.up // self.along) for row in range(1, self.along + 1))
        return periods * first + periods * (periods - 1) // 2 * (self.up * self.along)

    def columns(self, row: Any, tiles_n: Any) -> Any:
        """Return how many tiles a row of tiles has."""
        return cutlass.min(((row + 1) * self.up + self.along - 1) // self.along, tiles_n)

    @cute.jit
    def tile(self, mD: cute.Tensor, number):
        """Return this CTA's tile along M, along N, and the matrix of the batch."""
        tiles_m, tiles_n = self.tiles(mD)
        each = self.each(mD)
        batch = number // each
        inside = number - batch * each
        group = Int32(0)
        periods = cutlass.const_expr(self.group // self.along)
        for jump in cutlass.range_constexpr(len(_JUMPS)):
            while self.above((group + _JUMPS[jump]) * periods) <= inside:
                group = group + _JUMPS[jump]
        inside = inside - self.above(group * periods)
        first = group * self.group
        rows = cutlass.min(tiles_m - first, self.group)
        # Columns that all rows of the group have are taken downwards first, then what else the lower rows have.
        common = self.columns(first, tiles_n)
        i, j = first + inside % rows, inside // rows
        if inside >= common * rows:
            inside = inside - common * rows
            i = first + 1
            while inside >= self.columns(i, tiles_n) - common:
                inside = inside - (self.columns(i, tiles_n) - common)
                i = i + 1
            j = common + inside
        row, col = self.rank()
        return i * self.cluster_m + row, j * self.cluster_n + col, batch
