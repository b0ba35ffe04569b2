"""Skinny GEMM with 8-bit weights (W8A16): read once, and upcast in registers on their way into the tensor cores.

Idea
    A GEMM of few rows takes as long as its weights take to be read. wgmma takes one operand from registers, 64 rows of
    it: so the transposed product is computed, with weights as these rows. A warpgroup reads them from shared memory as
    TMA wrote them, upcasts them in registers, and multiplies. Products are exact, and accumulators those of float16.
Compared with hopper_gemm_upcast
    Weights are not written to memory and read again: one byte for each, not five. The rows of A are upcast by warps of
    their own, from stage to stage of shared memory. CTAs of a cluster split a tile's K.
Data movement
    Every weight is read once, by TMA, 128 rows by 128 bytes at a time; each CTA reads the few rows of A.
Limits
    Memory, up to about 64 rows; beyond, tensor cores at the rate of 16-bit floats.
Sources
    NVIDIA, PTX ISA: wgmma with A in registers, cvt, mapa; NVIDIA CUTLASS: mixed-input GEMM on Hopper.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_rows import Received, SplitKTile
from gemmule.kernels.hopper.mainloops.operands import flat
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.vector_epilogue import VectorEpilogue

from .config import BLOCK, THREADS, TILE_K, TILES_N, UPCAST_WARPS, W8A16Config
from .mainloop import MULTIPLIERS, UpcastMainloop

#: Registers of a thread that multiplies, and of others, by CTAs on an SM, blocks and rows of a tile.
_REGISTERS = {
    (2, 1, 8): (72, 56),
    (2, 1, 16): (72, 56),
    (2, 1, 32): (80, 48),
    (1, 2, 64): (168, 88),
    (1, 2, 128): (216, 40),
}
#: Those of the largest tile if rows of A are of 16 bits: a thread that permutes them has two words for one.
_REGISTERS_FOR_16_BITS = (184, 72)
#: The named barrier of the warps that multiply.
_MULTIPLIERS_BARRIER = 1


class Result(NamedTuple):
    """Operands of the epilogue."""

    c: Any
    d: Any
    scale: Any
    aux_args: Any


class HopperGemmW8A16:
    """D = alpha * X @ W.T + beta * C for X (M, K, L), W (N, K, L) of 8-bit floats, and row-major D (M, N, L).

    The transposed product is computed: the weights W are wgmma's A, its M (`tile_w`), and the tokens X its B, its N
    (`tile_n`).
    """

    def __init__(self, config: W8A16Config, types: dict[str, str]) -> None:
        self.mainloop = UpcastMainloop(config, types)
        self.registers: Any = _REGISTERS.get((config.residents, config.blocks, config.tile_n))
        if cute_type(types["a"]).width == 16 and config.tile_n == TILES_N[-1]:
            self.registers = _REGISTERS_FOR_16_BITS
        self.cluster_k, self.residents, self.blocks = config.cluster_k, config.residents, config.blocks
        self.tile_w, self.tile_n = config.tile_w, config.tile_n
        self.epilogue: Any = VectorEpilogue(types) if "epilogue" in types else None
        # Whether partial sums that arrive have memory of their own, so that no CTA waits for the receivers.
        self.own_memory = config.own_memory
        threads = CONSUMERS * WARPGROUP
        reads_c = types["adds"] == "yes"
        self.tile = SplitKTile(config.tile_n, config.tile_w, config.cluster_k, threads, self.epilogue, reads_c)

    @cute.jit
    def __call__(self, matrices, grid: Int32, scale, aux_args=None):
        mW, mX, mC, mD = matrices
        w, x = self.mainloop.operands.tma_a(mW), self.mainloop.operands.tma_b(mX)
        self.kernel((w, x), Result(mC, mD, scale, aux_args)).launch(
            grid=(grid, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.cluster_k, 1, 1),
            min_blocks_per_mp=self.residents,
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, operands, result):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        loaded, upcast = self.mainloop.loaded.barriers(smem), self.mainloop.upcast.barriers(smem)
        # The cluster's partial sums have arrived.
        full = smem.allocate_array(cutlass.Int64, 1)
        sW, sX, sB = self.mainloop.allocate(smem)
        partials = sW.iterator.toint()
        if cutlass.const_expr(self.own_memory):
            partials = smem.allocate(self.tile.nbytes, 128).toint()
        cta, _, batch = cute.arch.block_idx()
        tile_index, cta_k = cta // self.cluster_k, cta % self.cluster_k
        # Tiles of the same weights have consecutive indices.
        tiles_x = cute.ceil_div(result.d.shape[0], self.tile_n)
        tile_w, tile_x = tile_index // tiles_x, tile_index % tiles_x
        rows = cutlass.min(result.d.shape[0] - tile_x * self.tile_n, self.tile_n)
        if warp == 0:
            for operand in operands:
                cpasync.prefetch_descriptor(operand.atom)
            with cute.arch.elect_one():
                self.mainloop.loaded.init(loaded, 1, MULTIPLIERS + self.mainloop.upcast_warps)
                self.mainloop.upcast.init(upcast, self.mainloop.upcast_warps, MULTIPLIERS)
                if cutlass.const_expr(self.cluster_k > 1):
                    cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
            if cutlass.const_expr(self.cluster_k > 1):
                with cute.arch.elect_one():
                    self.tile.expect(full, cta_k, rows)
        cute.arch.sync_threads()
        if cutlass.const_expr(self.own_memory):
            # From here on the other CTAs may send.
            cute.arch.cluster_arrive()
        # Wait for the predecessor grid's writes, then let the dependent grid launch.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        k_tiles = cute.ceil_div(operands[0].tensor.shape[1], TILE_K)
        start = cta_k * k_tiles // self.cluster_k
        count = (cta_k + 1) * k_tiles // self.cluster_k - start
        if warp < MULTIPLIERS:
            if cutlass.const_expr(self.registers is not None):
                cute.arch.setmaxregister_increase(self.registers[0])
            origin = (tile_w * self.tile_w, tile_x * self.tile_n, batch)
            received = Received(partials, full, cta_k, rows)
            self.consume(result, (sW.iterator.toint(), sB), (loaded, upcast), count, received, origin)
        else:
            if cutlass.const_expr(self.registers is not None):
                cute.arch.setmaxregister_decrease(self.registers[1])
            if warp < MULTIPLIERS + UPCAST_WARPS:
                self.mainloop.upcast_rows(sX.iterator.toint(), sB.iterator.toint(), (loaded, upcast), count)
            elif warp == MULTIPLIERS + UPCAST_WARPS:
                self.mainloop.produce(operands, (sW, sX), loaded, (tile_w, tile_x, batch), (start, count))

    @cute.jit
    def consume(self, result, smem_wb, pipelines, count, received, origin):
        """Multiply the k-tiles as they arrive, and write this CTA's vectors of the tile."""
        tid, _, _ = cute.arch.thread_idx()
        accumulators, line = self.mainloop.multiply(smem_wb, pipelines, count)
        if cutlass.const_expr(self.cluster_k == 1):
            # All warps have read the stages, whose memory takes the accumulators.
            cute.arch.barrier(barrier_id=_MULTIPLIERS_BARRIER, number_of_threads=CONSUMERS * WARPGROUP)
        elif cutlass.const_expr(not self.own_memory):
            cute.arch.cluster_arrive()
        if cutlass.const_expr(self.cluster_k > 1):
            # The other CTAs' memory can take partial sums.
            cute.arch.cluster_wait()
        for block in cutlass.range_constexpr(self.blocks):
            self.tile.send(received, flat(accumulators[block]), line + block * BLOCK)
        if cutlass.const_expr(self.cluster_k > 1):
            cute.arch.mbarrier_wait(received.full, 0)
        else:
            cute.arch.barrier(barrier_id=_MULTIPLIERS_BARRIER, number_of_threads=CONSUMERS * WARPGROUP)
        first_col, first_row, batch = origin
        aux_args = result.aux_args
        if cutlass.const_expr(self.epilogue is not None):
            aux_args = self.epilogue.of_batch(aux_args, batch)
        gD, gC = (x[None, None, batch] for x in (result.d, result.c))
        self.tile.write(received, tid, Result(gC, gD, result.scale, aux_args), first_row, first_col)


def buildable(config: W8A16Config, types: dict[str, str]) -> Buildable:
    """Return the kernel for those types, with fake arguments."""
    weights, tokens = (
        major_tensor(types[name], 1, batch=1, vector=128 // cute_type(types[name]).width) for name in "ba"
    )
    results = (major_tensor(types[name], 1, batch=1) for name in "cd")
    kernel = HopperGemmW8A16(config, types)
    aux_args = () if kernel.epilogue is None else (kernel.epilogue.fake_args(),)
    scale = (cutlass.Float32(1), cutlass.Float32(0))
    return Buildable(kernel, ((weights, tokens, *results), Int32(1), scale, *aux_args))
