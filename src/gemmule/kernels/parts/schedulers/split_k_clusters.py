"""Split-K by clusters: several of them share a tile along K, and add their sums through a workspace.

The grid's second dimension are the clusters of a tile. The CTAs of a cluster reduce first, so that each has some
of the tile: it writes that, or in the last cluster adds what the same CTA of the others wrote. As with
stream-K a CTA waits only for CTAs of lower indices.
"""

from __future__ import annotations

from typing import Any

from cutlass import cute

from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .persistent import WorkRange
from .stream_k_fixup import StreamKPartials

#: Named barrier of the first warpgroup.
_BARRIER = 1


class SplitK:
    """Fix-up of clusters that share a tile, besides computing their part of K.

    Parameters
    ----------
    threads : int
        Threads of a CTA.
    """

    def __init__(self, threads: int) -> None:
        self.partials = StreamKPartials(threads // WARPGROUP)

    def part(self, rank: Any, cluster_k: int) -> tuple[Any, Any]:
        """Return which part of K a CTA of the cluster multiplies, and how many there are."""
        _, split, _ = cute.arch.block_idx()
        _, splits, _ = cute.arch.grid_dim()
        return split * cluster_k + rank, splits * cluster_k

    @cute.jit
    def finish(self, epilogue, results, rC: cute.Tensor, place, factors, workspaces):
        """Write partial sums, or in the last cluster add those of the others and write the result by the epilogue."""
        x, split, _ = cute.arch.block_idx()
        stride, splits, _ = cute.arch.grid_dim()
        tid, _, _ = cute.arch.thread_idx()
        warpgroup = cute.arch.make_warp_uniform(tid // 32) // (WARPGROUP // 32)
        flat = cute.make_tensor(rC.iterator, cute.make_layout(cute.size(rC)))
        cta = split * stride + x
        if split < splits - 1:
            self.partials.write(workspaces, flat, cta, warpgroup, _BARRIER + warpgroup)
        else:
            if splits > 1:
                self.partials.add_all(workspaces, flat, WorkRange(x, stride, cta), warpgroup, _BARRIER + warpgroup)
            epilogue.write(*results, rC, *place, *factors)
