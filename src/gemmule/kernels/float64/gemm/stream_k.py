"""Stream-K for the float64 GEMM: persistent CTAs, which share the tiles that do not fill a wave k-tile by k-tile."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float64, cute

from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.hopper.schedulers.persistent import KTileRange
from gemmule.kernels.hopper.schedulers.stream_k import StreamKScheduler
from gemmule.kernels.hopper.tile_config import WARPGROUP
from gemmule.kernels.parts.pdl import wait_for_predecessor

from .kernel import Float64Gemm

#: Named barrier of the first warpgroup.
_BARRIER = 1


class _Warpgroup(NamedTuple):
    """A warpgroup of a CTA, and its named barrier."""

    warpgroup_idx: Any
    barrier_id: Any


class StreamKFloat64Gemm(Float64Gemm):
    """`Float64Gemm` by persistent CTAs; the last argument are the workspaces of partial sums and flags."""

    def __init__(self, config: Float64Config, types: dict[str, str]) -> None:
        super().__init__(config, types)
        # As many as the launch recipe has: what waits for a place would begin a second wave.
        self.resident = config.resident
        self.shares = StreamKScheduler(config.threads // WARPGROUP, config.tile_m, config.tile_n, config.group)

    @cute.jit
    def compute_tile(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        """Compute this CTA's tiles, and its parts of others; `first` are the workspaces."""
        tid, _, _ = cute.arch.thread_idx()
        warpgroup = cute.arch.make_warp_uniform(tid // WARPGROUP)
        ctx = _Warpgroup(warpgroup, _BARRIER + warpgroup)
        own = self.mainloop.begin()
        wait_for_predecessor()
        depth = mA.shape[1]
        num_k_tiles = cutlass.max(cute.ceil_div(depth, self.mainloop.tile_k), 1)
        every = KTileRange(0, num_k_tiles)
        start, stride, end = self.shares.work(mD, num_k_tiles)
        for work_index in cutlass.range(start, end, stride, unroll=1):
            (tile_m, tile_n, batch), k_range = self.shares.work_tile(mD, work_index, every)
            gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
            m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
            # The stages may still be read.
            cute.arch.sync_threads()
            k_tiles = k_range.num_k_tiles if alpha != 0 and depth > 0 else 0
            own.accumulators.fill(Float64(0))
            places = self.mainloop.places(own, (gA, gB), (m0, n0))
            strides = self.mainloop.strides(gA, gB)
            self.mainloop.multiply_k_tiles(own, (gA, gB), (m0, n0), places, strides, (k_range.start, k_tiles))
            accumulators = own.accumulators
            flat = cute.make_tensor(accumulators.iterator, cute.make_layout(cute.size(accumulators)))
            if self.shares.fixup(first, flat, mD, k_range, num_k_tiles, ctx):
                row, col = own.corner
                self.epilogue.write(gD, gC, accumulators, m0 + row, n0 + col, alpha, beta)
