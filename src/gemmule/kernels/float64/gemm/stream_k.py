"""Stream-K for the float64 GEMM: persistent CTAs, which share the tiles that do not fill a wave k-tile by k-tile."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float64, Int32, cute

from gemmule.kernels.float64.config import SharedTilesConfig
from gemmule.kernels.float64.epilogue import Float64Epilogue
from gemmule.kernels.float64.mainloop import Float64Mainloop
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler
from gemmule.kernels.parts.schedulers.persistent import KTileRange
from gemmule.kernels.parts.stage_copies import opaque
from gemmule.kernels.parts.tile_gemm import TileGemm

from .shared_tiles import SharedTiles, SharedTileScheduler

#: Named barrier of the first warpgroup.
_BARRIER = 1


#: Most copies of a k-tile by a thread whose addresses registers hold: of several resident CTAs, and of one.
_SEVERAL, _ONE = 8, 16


def registers_are_scarce(config: SharedTilesConfig, types: dict[str, str]) -> bool:
    """Return whether a thread copies so many pieces of a k-tile that it would spill their addresses.

    With fewer pieces, computing addresses and coordinates again costs 1 to 3 %.
    """
    copies = (config.tile_m + config.tile_n) * config.tile_k * config.itemsize // int(types["a_copies"])
    return copies // config.threads > (_SEVERAL if config.resident > 1 else _ONE)


class _Warpgroup(NamedTuple):
    """A warpgroup of a CTA, and its named barrier."""

    warpgroup_idx: Any
    barrier_id: Any


class StreamKFloat64Gemm(TileGemm):
    """The float64 GEMM by persistent CTAs; the last argument are the workspaces, and what the host divides."""

    mainloop_type: type[Float64Mainloop] = Float64Mainloop

    def __init__(self, config: SharedTilesConfig, types: dict[str, str]) -> None:
        # As many as the launch recipe has: what waits for a place would begin a second wave.
        self.threads, self.cluster_k, self.resident = config.threads, 1, config.resident
        self.scheduler = RasterTileScheduler(config.tile_m, config.tile_n, config.group, 1)
        self.scarce = registers_are_scarce(config, types)
        self.mainloop = self.mainloop_type(config, types, chained=self.scarce)
        self.epilogue = self.epilogue_of(types)
        self.shares = SharedTileScheduler(config.threads // WARPGROUP, config.tile_m, config.tile_n, config.group)

    @cute.jit
    def compute_tile(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        """Compute this CTA's tiles, and its parts of others; `first` are the workspaces and `SharedTiles`."""
        own = self.mainloop.begin()
        wait_for_predecessor()
        (partials, flags), tiles = first[:2], SharedTiles(*first[2:])
        num_k_tiles = tiles.k_tiles
        every = KTileRange(0, num_k_tiles)
        start, stride, end = self.shares.work(tiles, num_k_tiles)
        if start < end:
            self.fill(own, (mA, mB), self.shares.work_tile(tiles, start, every), alpha)
        for work_index in cutlass.range(start, end, stride, unroll=1):
            self.multiply_filled(own, (mA, mB), self.shares.work_tile(tiles, work_index, every), alpha)
            # Computed again, not held in registers through the mainloop.
            again = opaque(work_index)
            warp = cute.arch.make_warp_uniform(self.thread() // 32)
            warpgroup = warp // (WARPGROUP // 32)
            ctx = _Warpgroup(warpgroup, _BARRIER + warpgroup)
            coord, k_range = self.shares.work_tile(tiles, again, every)
            # The last stages may still be read.
            cute.arch.sync_threads()
            if again + stride < end:
                # In flight while this tile is written.
                self.fill(own, (mA, mB), self.shares.work_tile(tiles, again + stride, every), alpha)
            accumulators = own.accumulators
            flat = cute.make_tensor(accumulators.iterator, cute.make_layout(cute.size(accumulators)))
            if self.shares.fixup((partials, flags), flat, tiles, k_range, num_k_tiles, ctx):
                (m0, n0), (row, col) = self.origin(coord), self.mainloop.corner_of(warp)
                gC, gD = mC[None, None, coord[2]], mD[None, None, coord[2]]
                self.write_tile((gD, gC), accumulators, (m0, n0), (row, col), (alpha, beta))

    def epilogue_of(self, types: dict[str, str]) -> Any:
        """Return the epilogue."""
        return Float64Epilogue(int(types["d_vector"]), types["tiles"] == "whole", self.scarce)

    def thread(self) -> Any:
        """Return the number of this thread."""
        return self.epilogue.thread()

    @cute.jit
    def write_tile(self, results, accumulators: cute.Tensor, origin, corner, factors):
        """Write a warp tile at `corner` of the tile at `origin`; `results` are D and C, `factors` alpha and beta."""
        place = origin[0] + corner[0], origin[1] + corner[1]
        self.epilogue.write(*results, accumulators, *place, *factors)

    def is_used(self, alpha: Any) -> Any:
        """Return whether a factor is not 0."""
        return alpha != 0

    def origin(self, coord: Any) -> tuple[Any, Any]:
        """Return the first row and column of a tile."""
        return coord[0] * self.scheduler.tile_m, coord[1] * self.scheduler.tile_n

    @cute.jit
    def fill(self, own, operands, work, alpha):
        """Issue the copies of the first k-tiles of a part."""
        tile, sources, k_tiles, _ = self.part(own, operands, work, alpha)
        self.mainloop.fill(tile, sources, k_tiles)

    @cute.jit
    def multiply_filled(self, own, operands, work, alpha):
        """Fill the accumulators with the product of a part, whose first k-tiles are in flight."""
        own.accumulators.fill(Float64(0))
        tile, sources, k_tiles, strides = self.part(own, operands, work, alpha)
        ahead = cutlass.const_expr(self.mainloop.stages - 1)
        sources = sources[0] + ahead * strides[0], sources[1] + ahead * strides[1]
        self.mainloop.multiply_filled(tile, sources, Int32(ahead * self.mainloop.stage_bytes), k_tiles)

    @cute.jit
    def part(self, own, operands, work, alpha):
        """Return a part of a tile, its first addresses, its k-tiles (none where alpha or K is 0), and strides."""
        coord, k_range = work
        gA, gB = operands[0][None, None, coord[2]], operands[1][None, None, coord[2]]
        k_tiles = k_range.num_k_tiles if self.is_used(alpha) and gA.shape[1] > 0 else 0
        origin, strides = self.origin(coord), self.mainloop.strides(gA, gB)
        places = self.mainloop.places(own, (gA, gB), origin)
        tile, sources = self.mainloop.tile(own, (gA, gB), origin, places, strides, k_range.start)
        return tile, sources, k_tiles, strides
