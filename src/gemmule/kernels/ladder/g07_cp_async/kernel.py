"""Rung 7: asynchronous copies, several stages deep, in all four layouts.

Idea
    cp.async copies k-tiles from device memory into shared memory without a register, several k-tiles ahead. The
    registers that this frees hold larger thread tiles: 16 x 8 accumulators a thread, of a 128 x 256 tile.
Change from the rung before
    A multistage mainloop (`SimtMainloop`): asynchronous copies into `stages` stages instead of two, spread over the
    steps of a k-tile; fragments of A and B are read one step ahead of their products; a warp tile is 64 x 64, its lanes
    4 x 8. A K-major operand still passes through registers: it must be transposed on the way, which asynchronous copies
    could do only 4 bytes at a time.
Data movement
    The tile of 128 x 256: 42.7 FLOP a byte. Per step of k a thread reads 6 vectors of 16 bytes for 128 multiply-adds.
Limits
    About nine of ten instructions of the main loop are multiply-adds: the others read shared memory and compute the
    addresses of copies, in every thread. With 8 warps an SM, each stall of a scheduler's two warps shows.
Sources
    NVIDIA CUTLASS, "Efficient GEMM in CUDA": the hierarchy of CTA, warp and thread tiles.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.schedulers.data_parallel import RasterTileScheduler
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.simt.config import VECTOR, CpAsyncConfig
from gemmule.kernels.simt.mainloop import SimtMainloop
from gemmule.kernels.simt.thread_tiles import write_thread_tile


class CpAsync:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(self, config: CpAsyncConfig, types: dict[str, str]):
        self.threads = config.threads
        self.scheduler = RasterTileScheduler(config.tile_m, config.tile_n, config.group)
        self.mainloop = SimtMainloop(config, types)

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(self.scheduler.ctas(mD), 1, 1), block=(self.threads, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tile_m, tile_n, batch, _ = self.scheduler.tile(mD)
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        m0, n0 = tile_m * self.scheduler.tile_m, tile_n * self.scheduler.tile_n
        rC = self.mainloop.multiply_tile(gA, gB, m0, n0, alpha)
        row, col = self.mainloop.corner()
        write_thread_tile(gD, gC, rC, m0 + row, n0 + col, (alpha, beta), self.mainloop)


def buildable(config: CpAsyncConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    name = types["element"]
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0, 1, 1)
    vector = VECTOR if types["copies"] == "16" else 1
    tensors = tuple(major_tensor(name, unit, batch=1, vector=vector) for unit in units)
    arguments = (*tensors, cute_type(name)(1), cute_type(name)(0))
    return Buildable(CpAsync(config, types), arguments)
