"""Double precision, rung 3: the tensor cores, by mma.sync.

Idea
    A warp's 32 threads hold a product of 16 x 8 x 16 together: 2048 multiply-adds in one instruction, which reads 16
    operands of 8 bytes a thread for 64 of them. On Hopper the tensor cores multiply float64 at twice the rate of the
    FMA units.
Change from the rung before
    Both operands are in shared memory again, in stages of asynchronous copies: a warp reads an element once for 32 or
    64 multiply-adds. Operands keep the order that they have in memory, whatever the layout. Where there are few tiles,
    the CTAs of a cluster may share one: each takes a part of K.
Data movement
    The tile of 64 x 64: 8 FLOP a byte. For 16 of K a warp reads 8 KiB of fragments of shared memory for its 32 x 32
    sums, 8 instructions. The three CTAs of a multiprocessor wait at different times.
Limits
    The tensor cores, with shared memory busy three quarters of their time. And power, at large sizes.
Sources
    PTX ISA: fragments of mma.sync for .f64. NVIDIA CUTLASS, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

import cutlass
from cutlass import Float64, Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.float64.cluster_reduction import add_columns, put_sums
from gemmule.kernels.float64.epilogue import DoubleSums
from gemmule.kernels.float64.stage import DEPTH, DoubleSlice
from gemmule.kernels.parts.mma_sync import double_mma_name, mma_sync
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.stage_copies import SliceCopies
from gemmule.kernels.parts.tensors import cute_type, major_tensor

from .spec import BLOCK, COLUMNS, MmaDoubleConfig


class MmaDouble:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(self, config: MmaDoubleConfig, types: dict[str, str]) -> None:
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, config.tile_k
        self.warps_n, self.threads = config.warps_n, config.threads
        # One layout of the four, and copies of single elements, need a few registers more for their addresses.
        roomy = (types["a_along"], types["b_along"]) == ("m", "k") or "8" in (types["a_copies"], types["b_copies"])
        self.resident = max(config.resident - roomy, 1)
        self.warp_m, self.warp_n = self.tile_m // config.warps_m, self.tile_n // config.warps_n
        self.stages, self.group, self.cluster_k = config.stages, config.group, config.cluster_k
        self.blocks, self.columns = self.warp_m // BLOCK, self.warp_n // COLUMNS
        # Fragments of 8 or 16 k are read together; an mma.sync takes as many of a lane's words as its K needs.
        self.words, self.mma_words = max(config.mma_k, 8) // DEPTH, config.mma_k // DEPTH
        self.steps = self.tile_k // (DEPTH * self.words)
        self.mma_m, self.mma = config.mma_m, double_mma_name(config.mma_m, config.mma_k)
        # Copies are spread over all blocks but the last, which waits for an older slice.
        self.parts = max(self.steps * self.blocks - 1, 1)
        whole = types["tiles"] == "whole"
        self.end = DoubleSums(int(types["run"]), whole)
        self.cutA = DoubleSlice(self.tile_m, self.tile_k, types["a_along"] == "k")
        self.cutB = DoubleSlice(self.tile_n, self.tile_k, types["b_along"] == "k")
        self.copyA = SliceCopies(self.cutA, int(types["a_copies"]), self.threads, self.parts, whole)
        self.copyB = SliceCopies(self.cutB, int(types["b_copies"]), self.threads, self.parts, whole)
        self.stage_bytes = self.cutA.bytes + self.cutB.bytes

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(tiles_m * tiles_n * mD.shape[2] * self.cluster_k, 1, 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster_k, 1, 1) if self.cluster_k > 1 else None,
            min_blocks_per_mp=self.resident,
            # Given, so that the compiler asks no driver; the launch recipe decides.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        block, _, _ = cute.arch.block_idx()
        cta, rank = block // self.cluster_k, block % self.cluster_k
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        tile_m, tile_n = grouped_tile(cta % (tiles_m * tiles_n), tiles_m, tiles_n, self.group)
        batch = cta // (tiles_m * tiles_n)
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        self.compute(gA, gB, gC, gD, alpha, beta, tile_m * self.tile_m, tile_n * self.tile_n, rank)

    @cute.jit
    def compute(self, gA: cute.Tensor, gB: cute.Tensor, gC: cute.Tensor, gD: cute.Tensor, alpha, beta, m0, n0, rank):
        """Compute the tile that begins at (m0, n0), or in a cluster this CTA's part of it."""
        smem = SmemAllocator().allocate(self.stages * self.stage_bytes, 1024)
        row, col = self.corner()
        # A lane's elements of the block of A that is multiplied, of the next one, and of all columns of B.
        rA = cute.make_rmem_tensor(cute.make_layout((2, self.words)), Float64)
        rNext = cute.make_rmem_tensor(cute.make_layout((2, self.words)), Float64)
        rB = cute.make_rmem_tensor(cute.make_layout((self.words, self.columns)), Float64)
        rC = cute.make_rmem_tensor(cute.make_layout((4, self.blocks, self.columns)), Float64)
        rC.fill(Float64(0))
        wait_for_predecessor()

        sourceA, sourceB = self.copyA.source(gA, m0), self.copyB.source(gB, n0)
        # Places in the slices of stage 0: those of A, then those of B.
        slicesA = smem.toint()
        slicesB = slicesA + self.cutA.bytes
        targetA, targetB = slicesA + self.copyA.target(), slicesB + self.copyB.target()
        startA, startB = slicesA + self.cutA.place(row), slicesB + self.cutB.place(col)

        depth = gA.shape[1] if alpha != 0 else 0
        slices, k0 = cute.ceil_div(depth, self.tile_k), Int32(0)
        stepA, stepB = self.copyA.slice_step(gA), self.copyB.slice_step(gB)
        if cutlass.const_expr(self.cluster_k > 1):
            # CTAs of a cluster take parts of K, one behind the other.
            first, slices = slices * rank // self.cluster_k, slices * (rank + 1) // self.cluster_k
            slices, k0 = slices - first, first * self.tile_k
            sourceA, sourceB = sourceA + first * stepA, sourceB + first * stepB
        writing = Int32(0)
        for s in cutlass.range(self.stages - 1, unroll=1):
            if s < slices:
                for part in cutlass.range_constexpr(self.parts):
                    self.copyA.start(gA, sourceA, targetA + writing, m0, k0 + s * self.tile_k, part)
                    self.copyB.start(gB, sourceB, targetB + writing, n0, k0 + s * self.tile_k, part)
            # A group even where there is no slice, so that all stages count alike.
            cute.arch.cp_async_commit_group()
            sourceA, sourceB, writing = sourceA + stepA, sourceB + stepB, writing + self.stage_bytes
        self.await_slice()
        self.read_block(rA, startA, 0, 0)
        for j in cutlass.range_constexpr(self.columns):
            self.read_column(rB, startB, j, 0)
        reading = Int32(0)
        for s in cutlass.range(slices):
            following = self.next_stage(reading)
            ahead = s + self.stages - 1
            for place in cutlass.range_constexpr(self.steps * self.blocks):
                i = cutlass.const_expr(place % self.blocks)
                after = cutlass.const_expr((place + 1) % (self.steps * self.blocks))
                if cutlass.const_expr(place < self.parts):  # noqa: SIM102, one when compiled and one when run
                    if ahead < slices:
                        self.copyA.start(gA, sourceA, targetA + writing, m0, k0 + ahead * self.tile_k, place)
                        self.copyB.start(gB, sourceB, targetB + writing, n0, k0 + ahead * self.tile_k, place)
                if cutlass.const_expr(after == 0):
                    cute.arch.cp_async_commit_group()
                    self.await_slice()
                    reading = following
                # One block ahead of the products; behind the last slice this reads what nobody uses.
                self.read_block(rNext, startA + reading, after % self.blocks, after // self.blocks)
                for j in cutlass.range_constexpr(self.columns):
                    self.multiply(rA, rB[None, j], rC[None, i, j])
                    if cutlass.const_expr(i == self.blocks - 1):
                        # Used a moment ago, and free for those of the next step.
                        self.read_column(rB, startB + reading, j, after // self.blocks)
                rA.store(rNext.load())
            writing = self.next_stage(writing)
            sourceA, sourceB = sourceA + stepA, sourceB + stepB
        cute.arch.cp_async_wait_group(0)
        if cutlass.const_expr(self.cluster_k > 1):
            part = cutlass.const_expr(self.columns // self.cluster_k)
            rPart = cute.make_rmem_tensor(cute.make_layout((4, self.blocks, part)), Float64)
            self.exchange(rPart, rC, slicesA, rank)
            self.end.write(gD, gC, rPart, m0 + row, n0 + col + rank * (part * COLUMNS), alpha, beta)
        else:
            self.end.write(gD, gC, rC, m0 + row, n0 + col, alpha, beta)

    @cute.jit
    def corner(self):
        """Return the first row and column of this warp's part of the tile."""
        tid, _, _ = cute.arch.thread_idx()
        # The same for all threads of a warp, which the compiler would not know.
        warp = cute.arch.make_warp_uniform(tid // 32)
        return warp // self.warps_n * self.warp_m, warp % self.warps_n * self.warp_n

    @cute.jit
    def next_stage(self, stage):
        """Return where the slices of the next stage begin, from those of stage 0 on."""
        return stage + self.stage_bytes if stage < (self.stages - 1) * self.stage_bytes else 0

    @cute.jit
    def await_slice(self):
        """Wait until the oldest slice in flight has arrived, for every thread."""
        cute.arch.cp_async_wait_group(self.stages - 2)
        cute.arch.sync_threads()

    @cute.jit
    def read_block(self, rA: cute.Tensor, start, i: cutlass.Constexpr[int], step: cutlass.Constexpr[int]):
        """Read this lane's elements of 16 rows of A, of one step of a slice."""
        for word in cutlass.range_constexpr(self.words):
            for half in cutlass.range_constexpr(2):
                rA[half, word] = self.cutA.read(start, 2 * i + half, step * self.words + word)

    @cute.jit
    def read_column(self, rB: cute.Tensor, start, j: cutlass.Constexpr[int], step: cutlass.Constexpr[int]):
        """Read this lane's elements of 8 columns of B, of one step of a slice."""
        for word in cutlass.range_constexpr(self.words):
            rB[word, j] = self.cutB.read(start, j, step * self.words + word)

    @cute.jit
    def multiply(self, rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor):
        """Add the product of 16 rows and 8 columns, for one step: as many instructions as its K, and its rows, take."""
        for first in cutlass.range_constexpr(0, self.words, self.mma_words):
            words = cutlass.const_expr(range(first, first + self.mma_words))
            b = tuple(rB[word] for word in words)
            if cutlass.const_expr(self.mma_m == BLOCK):
                mma_sync(self.mma, rC, tuple(rA[half, word] for word in words for half in range(2)), b)
            else:
                for half in cutlass.range_constexpr(2):
                    sums = cute.make_tensor(rC.iterator + 2 * half, cute.make_layout(2))
                    mma_sync(self.mma, sums, tuple(rA[half, word] for word in words), b)

    @cute.jit
    def exchange(self, rPart: cute.Tensor, rC: cute.Tensor, slots, rank):
        """Give the cluster this CTA's sums, and add up the part of the columns that it will write."""
        # What was shared memory of slices becomes that of sums.
        cute.arch.sync_threads()
        put_sums(rC, slots, self.threads)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        add_columns(rPart, slots, rank, self.cluster_k, self.threads)
        # Nobody leaves while others read.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


def buildable(config: MmaDoubleConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    element = types["element"]
    units = (1 if types["a_along"] == "k" else 0, 1 if types["b_along"] == "k" else 0)
    vectors = (int(types["a_copies"]) // 8, int(types["b_copies"]) // 8)
    operands = tuple(
        major_tensor(element, unit, batch=1, vector=vector) for unit, vector in zip(units, vectors, strict=True)
    )
    results = tuple(major_tensor(element, 1, batch=1, vector=int(types["run"])) for _ in range(2))
    return Buildable(MmaDouble(config, types), (*operands, *results, cute_type(element)(1), cute_type(element)(0)))
