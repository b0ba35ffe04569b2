"""Split-K for the float64 GEMM: several clusters share a tile along K, and add their sums through a workspace.

The grid's second dimension are the clusters of a tile. The CTAs of a cluster reduce first, so that each has some
columns of the tile: it writes those, or in the last cluster adds those that the same CTA of the others wrote. As with
stream-K a CTA waits only for CTAs of lower indices.
"""

from __future__ import annotations

from typing import Any

from cutlass import cute

from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.persistent import WorkRange
from gemmule.kernels.parts.schedulers.stream_k_fixup import StreamKPartials

from .kernel import Float64Gemm

#: Named barrier of the first warpgroup.
_BARRIER = 1


class SplitKFloat64Gemm(Float64Gemm):
    """The float64 GEMM whose tiles are shared by clusters; the last argument are the workspaces."""

    def __init__(self, config: Float64Config, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.partials = StreamKPartials(config.threads // WARPGROUP)

    def part(self, rank: Any) -> tuple[Any, Any]:
        """As of `Float64Gemm`."""
        _, split, _ = cute.arch.block_idx()
        _, splits, _ = cute.arch.grid_dim()
        return split * self.cluster_k + rank, splits * self.cluster_k

    @cute.jit
    def finish(self, results, rC: cute.Tensor, place, factors, first):
        """As of `Float64Gemm`; `first` are the workspaces."""
        x, split, _ = cute.arch.block_idx()
        stride, splits, _ = cute.arch.grid_dim()
        tid, _, _ = cute.arch.thread_idx()
        warpgroup = cute.arch.make_warp_uniform(tid // 32) // (WARPGROUP // 32)
        flat = cute.make_tensor(rC.iterator, cute.make_layout(cute.size(rC)))
        cta = split * stride + x
        if split < splits - 1:
            self.partials.write(first, flat, cta, warpgroup, _BARRIER + warpgroup)
        else:
            if splits > 1:
                self.partials.add_all(first, flat, WorkRange(x, stride, cta), warpgroup, _BARRIER + warpgroup)
            self.epilogue.write(*results, rC, *place, *factors)
