"""Products of residues: 15 products of bytes in one launch, each written modulo its own number, a byte an element.

Idea
    Tensor cores multiply int8 at twice the rate of bfloat16 and sum it up in int32, exactly. The sums are not wanted,
    only what is left of them modulo the product's own number: a byte is written instead of four.
Change from the rung before
    The batch are the moduli; sums are reduced in registers, and added to what an earlier part of a long K has left. A
    thread's bytes of a row are written side by side, in their own order within 64 columns: who reads them knows it.
Data movement
    The tile of 128 x 256: 171 operations a byte from L2, 256 where two CTAs share what they read of B.
Limits
    Power: at full rate an H100 lowers its clock. Then the reduction, in which the tensor cores wait.
Sources
    As of h09 and ozaki_gemm; Granlund and Montgomery 1994, "Division by Invariant Integers using Multiplication".
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint32, cute, select_
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.spec import Buildable
from gemmule.kernels.emulation.residues import MODULI, SHIFT, middle, quotient
from gemmule.kernels.hopper.mainloops.tma_wgmma import (
    Mainloop,
    TmaLoad,
    multicast_a,
    multicast_b,
    partitioned,
    release_cluster,
)
from gemmule.kernels.hopper.mainloops.wgmma import tiled_mma
from gemmule.kernels.hopper.schedulers.persistent import ClusterTiles
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M, THREADS, WARPGROUP
from gemmule.kernels.parts.tensors import major_tensor
from gemmule.kernels.parts.words import packed, words_at

from .config import GROUP, SLICE, ProductsConfig

# Registers of a thread: the copying warpgroup gives up what those that multiply need.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, 232
# Named barriers for the warpgroups' turns.
_TURN = 1


class Products:
    """D[l] = A[l] @ B[l] (+ D[l]) modulo the l-th modulus: A (M, K, L), B (N, K, L), both int8 by TMA, D (M, N, L)."""

    def __init__(self, config: ProductsConfig, types: dict[str, str]) -> None:
        self.adds = types["adds"] == "yes"
        self.tile_m, self.tile_n = config.tile_m, config.tile_n
        self.stages = config.stages
        self.cluster_m, self.cluster_n = config.cluster_m, config.cluster_n
        self.size = self.cluster_m * self.cluster_n
        self.pingpong = bool(config.pingpong)
        # Blocks of 64 rows that a warpgroup computes of a tile, and warpgroups that share one.
        self.sharing, self.blocks = config.warpgroups_per_tile, config.blocks
        self.order = ClusterTiles(self.tile_m, self.tile_n, self.cluster_m, self.cluster_n, 1, config.group)
        stage_bytes = (self.tile_m + self.tile_n) * SLICE
        self.mainloop = Mainloop(self.stages, stage_bytes, pingpong=self.pingpong, turn_barrier=_TURN)
        # Those who use what a CTA brings: itself, and the others of its row and column of the cluster.
        self.peers = self.cluster_m + self.cluster_n - 1

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor, grid: Int32):
        tile = (self.tile_m, self.tile_n, SLICE)
        sA = hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, cutlass.Int8, self.stages)
        sB = hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, cutlass.Int8, self.stages)
        slice_a, slice_b = (cute.slice_(layout, (None, None, 0)) for layout in (sA, sB))
        load, share = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileG2SMulticastOp()
        tma_a, tA = cpasync.make_tiled_tma_atom(
            load if self.cluster_n == 1 else share, mA, slice_a, (self.tile_m, SLICE), self.cluster_n
        )
        tma_b, tB = cpasync.make_tiled_tma_atom(
            load if self.cluster_m == 1 else share, mB, slice_b, (self.tile_n, SLICE), self.cluster_m
        )
        self.kernel(tma_a, tA, tma_b, tB, mD, sA, sB).launch(
            grid=(grid, 1, 1), block=(THREADS, 1, 1), cluster=(self.size, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        mA: cute.Tensor,
        tma_b: cute.CopyAtom,
        mB: cute.Tensor,
        mD: cute.Tensor,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
    ):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        full, empty = self.mainloop.barriers(smem)
        sA, sB = (
            smem.allocate_tensor(cutlass.Int8, layout.outer, 1024, swizzle=layout.inner)
            for layout in (layout_a, layout_b)
        )
        if warp == 0:
            cpasync.prefetch_descriptor(tma_a)
            cpasync.prefetch_descriptor(tma_b)
            with cute.arch.elect_one():
                self.mainloop.init(full, empty, 1, self.sharing * self.peers)
            cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(self.size > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        # What the launch before this one wrote is there; the next one may prepare itself.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        slices = mA.shape[1] // SLICE
        if warp // 4 == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self.produce(tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, slices)
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            self.consume(mD, sA, sB, full, empty, slices, warp // 4 - 1)

    @cute.jit
    def produce(self, tma_a, mA, tma_b, mB, mD, sA, sB, full, empty, k_tiles):
        """Load every k-tile of every tile."""
        row, col = self.order.rank()
        gA = cute.local_tile(mA, (self.tile_m, SLICE), (None, None, None))
        gB = cute.local_tile(mB, (self.tile_n, SLICE), (None, None, None))
        part_a = partitioned(tma_a, sA, gA, col, self.cluster_n)
        part_b = partitioned(tma_b, sB, gB, row, self.cluster_m)
        load_a = TmaLoad(tma_a, *part_a, multicast_a(self.order, row))
        load_b = TmaLoad(tma_b, *part_b, multicast_b(self.order, col))
        stage, phase = Int32(0), Int32(1)
        first, step, tiles = self.order.share(mD)
        for number in cutlass.range(first, tiles, step):
            i, j, batch = self.order.tile(mD, number)
            loads = ((load_a, i), (load_b, j))
            stage, phase = self.mainloop.load(loads, (batch,), full, empty, stage, phase, 0, k_tiles)
        if cutlass.const_expr(self.peers > 1):
            self.mainloop.drain(empty, stage, phase)

    @cute.jit
    def consume(self, mD, sA, sB, full, empty, slices, mine):
        """Multiply the slices of this warpgroup's tiles as they arrive, and write the tiles."""
        mma = tiled_mma(cutlass.Int8, (True, True), Int32, self.sharing, (MMA_M, self.tile_n))
        part = mma.get_slice(0 if self.pingpong else mine * WARPGROUP)
        rA, rB = mma.make_fragment_A(part.partition_A(sA)), mma.make_fragment_B(part.partition_B(sB))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.tile_m, self.tile_n)), Int32)
        stage, phase = Int32(0), Int32(0)
        first, step, tiles = self.order.share(mD)
        if cutlass.const_expr(self.pingpong):
            # Every other tile; the slices of those between pass by.
            if mine == 1:
                stage, phase = slices % self.stages, slices // self.stages % 2
                cute.arch.barrier_arrive(barrier_id=_TURN, number_of_threads=2 * WARPGROUP)
            first, step = first + mine * step, CONSUMERS * step
        for number in cutlass.range(first, tiles, step):
            tile_m, tile_n, batch = self.order.tile(mD, number)
            self.mainloop.begin_turn(mine)
            stage, phase, last = self.mainloop.multiply(
                mma, sums, rA, rB, full, stage, phase, slices, lambda done: release_cluster(self.order, empty, done)
            )
            self.mainloop.end_turn(mine)
            warpgroup.wait_group(0)
            release_cluster(self.order, empty, last)
            if cutlass.const_expr(self.pingpong):
                stage, phase = self.mainloop.skip(stage, phase, slices)
            numbers = self.numbers(batch)
            gD = mD[None, None, batch]
            self.finish(gD, sums, tile_m * self.tile_m, tile_n * self.tile_n, mine, numbers)

    @cute.jit
    def numbers(self, batch):
        """Return what a sum is reduced by: offset, factor and modulus of this product."""
        every = cutlass.const_expr([self.numbers_of(modulus) for modulus in MODULI])
        offset, factor, modulus = (Uint32(one) for one in every[0])
        for number in cutlass.range_constexpr(1, len(MODULI)):
            chosen = batch == number
            offset = Uint32(select_(chosen, Uint32(every[number][0]), offset))
            factor = Uint32(select_(chosen, Uint32(every[number][1]), factor))
            modulus = Uint32(select_(chosen, Uint32(every[number][2]), modulus))
        return offset, factor, modulus

    def numbers_of(self, modulus: int) -> tuple[int, int, int]:
        """Return offset, factor and modulus; what is added to has its middle already."""
        offset, factor = quotient(modulus)
        return offset - (middle(modulus) if self.adds else 0), factor, modulus

    @cute.jit
    def finish(self, gD, sums, m0, n0, mine, numbers):
        """Write a tile: of every 64 columns a thread has 16, which it writes side by side."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid % WARPGROUP // 32, tid % 32
        flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
        for block in cutlass.range_constexpr(self.blocks):
            of_tile = block if cutlass.const_expr(self.pingpong) else mine + CONSUMERS * block
            for half in cutlass.range_constexpr(2):
                row = m0 + of_tile * MMA_M + warp * 16 + lane // 4 + 8 * half
                if row < gD.shape[0]:
                    for g in cutlass.range_constexpr(self.tile_n // GROUP):
                        col = n0 + GROUP * g
                        if col < gD.shape[1]:
                            place = cutlass.const_expr(block * self.tile_n // 2 + GROUP // 2 * g + 2 * half)
                            self.write(gD, flat, place, row, col + 16 * (lane % 4), numbers)

    @cute.jit
    def write(self, gD, flat, place: cutlass.Constexpr[int], row, col, numbers):
        """Write 16 bytes: two neighbours of every eighth column, modulo the product's number."""
        offset, factor, modulus = numbers
        target = words_at(gD.iterator + cute.crd2idx((row, col), gD.layout), 4)
        words = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
        if cutlass.const_expr(self.adds):
            cute.autovec_copy(target, words)
        for w in cutlass.range_constexpr(4):
            four = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
            for e in cutlass.range_constexpr(4):
                moved = Uint32(flat[place + 8 * w + 4 * (e // 2) + e % 2]) + offset
                if cutlass.const_expr(self.adds):
                    moved = moved + ((words[w] >> 8 * e) & Uint32(0xFF))
                four[e] = moved - (upper(moved, factor) >> SHIFT) * modulus
            words[w] = packed(four)
        cute.autovec_copy(words, target)


@cute.jit
def upper(a, b):
    """Return the upper half of a product."""
    return cute.arch.inline_ptx("mul.hi.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[a, b])


def buildable(config: ProductsConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel with stand-ins for its arguments."""
    a, b = (major_tensor("int8", 1, batch=1, vector=16) for _ in range(2))
    d = major_tensor("uint8", 1, batch=1, vector=16)
    return Buildable(Products(config, types), (a, b, d, Int32(1)))
