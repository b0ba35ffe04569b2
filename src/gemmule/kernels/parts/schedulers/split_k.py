"""Split-K scheduler: the k-tiles of each tile are divided evenly among the CTAs of a column of the grid.

The grid has a row of clusters for each part of K, with a cluster for each tile at least. All parts but the last are
written to a workspace as partial sums; the CTA with the last part adds them, in the order of the parts, and writes the
tile. So a CTA waits only for CTAs of lower indices, which start before it.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute

from .persistent import KTileRange, WorkRange
from .stream_k_fixup import FixupScheduler


class SplitKScheduler(FixupScheduler):
    """Every cluster computes a part of a tile's K; where K is in one piece, it computes every n-th tile."""

    @cute.jit
    def k_range(self, num_k_tiles):
        """Return the k-tiles of this CTA's part of K."""
        _, part, _ = cute.arch.block_idx()
        _, parts, _ = cute.arch.grid_dim()
        start, end = Int32(0), Int32(num_k_tiles)
        if parts > 1:
            start, end = num_k_tiles * part // parts, num_k_tiles * (part + 1) // parts
        return KTileRange(start, end - start)

    @cute.jit
    def has_last_part(self):
        """Return whether this CTA has the last part of K, and writes tiles."""
        _, part, _ = cute.arch.block_idx()
        _, parts, _ = cute.arch.grid_dim()
        return part == parts - 1

    def fixup(self, workspaces: Any, accumulators: Any, mD: Any, k_range: Any, num_k_tiles: Any, ctx: Any) -> Any:
        """Add the other parts to the last one's accumulators, or write another part; return whether it is the last.

        The parameters are those of `StreamKScheduler.fixup`.
        """
        del mD, k_range, num_k_tiles
        return self.add_or_write(workspaces, accumulators, ctx)

    @cute.jit
    def add_or_write(self, workspaces, accumulators: cute.Tensor, ctx):
        """Run the fix-up `fixup`."""
        column, part, _ = cute.arch.block_idx()
        columns, parts, _ = cute.arch.grid_dim()
        warpgroup_idx = self.warpgroup_idx(ctx)
        is_last, cta = part == parts - 1, part * columns + column
        if is_last:
            if parts > 1:
                peers = WorkRange(column, columns, cta)
                self.partials.add(workspaces, accumulators, peers, warpgroup_idx, ctx.barrier_id)
        else:
            self.partials.write(workspaces, accumulators, cta, warpgroup_idx, ctx.barrier_id)
        return is_last
