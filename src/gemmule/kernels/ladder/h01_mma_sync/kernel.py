"""Tensor cores by mma.sync: the CuTe HGEMM for Ampere, for all types and layouts.

Idea
    Three levels overlap. cp.async brings slices of A and B from device memory into shared memory, several slices
    ahead; ldmatrix brings fragments from there into registers, one step ahead; mma.sync multiplies the fragments of
    this step. 16-byte chunks are swizzled in shared memory, so that both sides meet all banks.
Change from g07_cp_async
    A warp's 32 threads hold one product together: 16 x 8 x 16 multiply-adds are one instruction. Operands keep the
    order that they have in memory, whatever the layout: ldmatrix transposes on the way into registers. Sums pass
    through shared memory at the end, so that rows are written 16 bytes a thread.
Data movement
    The tile of 128 x 128: 64 FLOP a byte in 16 bits. A warp's part of 64 x 64 reads 4 KiB of fragments for 32
    mma.sync m16n8k16.
Limits
    On Hopper mma.sync feeds the tensor cores at 0.67 of the rate of wgmma, which takes its operands from shared memory
    by itself, and at 0.5 with the fragments that it needs. Power limits what is left.
Sources
    NVIDIA CUTLASS, the CuTe tutorial for sm_80: swizzled atoms, the three levels, alpha and beta. PTX ISA: fragments
    of mma.sync, ldmatrix.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.ladder.h01_mma_sync.fragments import finish_fragment, read_fragment
from gemmule.kernels.ladder.h01_mma_sync.gated_warp_tiles import GatedSquares
from gemmule.kernels.ladder.h01_mma_sync.warp_tiles import WarpSquares
from gemmule.kernels.parts.mma_sync import mma_name, mma_sync
from gemmule.kernels.parts.pdl import await_launch_before
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.stage_copies import SliceCopies
from gemmule.kernels.parts.swizzled_stage import K_BYTES, ROWS, SwizzledSlice
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.vector_epilogue import RunEpilogue

from .config import MmaSyncConfig


class MmaSync:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(self, config: MmaSyncConfig, types: dict[str, str]) -> None:
        self.epilogue: Any = RunEpilogue(types) if "epilogue" in types else None
        # Of a gated form, a tile holds as many columns of B as of another B, for half as many of the result.
        self.factors = 2 if self.epilogue is not None and self.epilogue.expression.gated else 1
        self.tile_m, self.tile_n = config.tile_m, config.tile_n // self.factors
        self.warps_m, self.warps_n, self.threads = config.warps_m, config.warps_n, config.threads
        self.warp_m, self.warp_n = self.tile_m // self.warps_m, self.tile_n // self.warps_n
        self.stages, self.group = config.stages, config.group
        self.element, self.acc = cute_type(types["a"]), cute_type(types["acc"])
        itemsize = self.element.width // 8
        self.tile_k, self.steps = config.k_bytes // itemsize, config.k_bytes // K_BYTES
        # Copies are spread over all steps but the last, which waits for an older slice.
        self.parts = self.steps - 1
        whole = types["tiles"] == "whole"
        self.cutA = SwizzledSlice(self.tile_m, self.tile_k, itemsize, types["a_major"] == "k", rows_first=True)
        self.cutB = SwizzledSlice(self.tile_n, self.tile_k, itemsize, types["b_major"] == "k", rows_first=False)
        self.copyA = SliceCopies(self.cutA, int(types["a_copies"]), self.threads, self.parts, whole)
        self.copyB = SliceCopies(self.cutB, int(types["b_copies"]), self.threads, self.parts, whole)
        self.by_element = self.copyA.by_element or self.copyB.by_element
        self.stage_bytes = self.cutA.bytes + self.factors * self.cutB.bytes
        # An mma.sync takes all of a fragment, or one half of its K after the other.
        self.halves = K_BYTES // config.mma_k_bytes
        sums = "float16" if config.sum_bits == 16 else types["acc"]
        self.sum, self.words = cute_type(sums), 4 * config.sum_bits // 32
        self.mma = mma_name(types["a"], sums, config.mma_k_bytes)
        self.end = (WarpSquares if self.factors == 1 else GatedSquares)(
            self.warp_m,
            self.warp_n,
            int(types["run"]),
            whole,
            self.cutA.neighbours,
            self.cutB.neighbours,
            self.epilogue,
        )

    @cute.jit
    def __call__(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None, mU=None
    ):
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        self.kernel(mA, mB, mC, mD, alpha, beta, extras, mU).launch(
            grid=(tiles_m * tiles_n * mD.shape[2], 1, 1), block=(self.threads, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(
        self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, extras=None, mU=None
    ):
        cta, _, _ = cute.arch.block_idx()
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        tile_m, tile_n = grouped_tile(cta % (tiles_m * tiles_n), tiles_m, tiles_n, self.group)
        batch = cta // (tiles_m * tiles_n)
        m0, n0 = tile_m * self.tile_m, tile_n * self.tile_n
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        smem = SmemAllocator().allocate(self.stages * self.stage_bytes, 1024)
        row, col = self.corner()
        # Two of each fragment: one is read while the other is multiplied.
        rA = cute.make_rmem_tensor(cute.make_layout((4, self.warp_m // ROWS, 2)), Int32)
        cols = cutlass.const_expr(self.factors * self.warp_n)
        rB = cute.make_rmem_tensor(cute.make_layout((4, cols // ROWS, 2)), Int32)
        rC = cute.make_rmem_tensor(cute.make_layout((self.words, self.warp_m // 16, cols // 8)), Int32)
        rC.fill(Int32(0))
        heldA, heldB = self.copyA.held(), tuple(self.copyB.held() for _ in range(self.factors))
        # From B to the other B, in bytes.
        apart: Any = (0,)
        if cutlass.const_expr(self.factors > 1):
            apart = (0, mU[None, None, batch].iterator.toint() - gB.iterator.toint())
        await_launch_before()

        sourceA, sourceB = self.copyA.source(gA, m0), self.copyB.source(gB, n0)
        # Places in the slices of stage 0: those of A, then those of B.
        slicesA = smem.toint()
        slicesB = slicesA + self.cutA.bytes
        targetA, targetB = slicesA + self.copyA.target(), slicesB + self.copyB.target()
        startA, startB = slicesA + self.cutA.fragment_place(row), slicesB + self.cutB.fragment_place(col)

        depth = mA.shape[1] if alpha != 0 else 0
        slices = cute.ceil_div(depth, self.tile_k)
        stepA, stepB = self.copyA.slice_step(gA), self.copyB.slice_step(gB)
        writing = Int32(0)
        for s in cutlass.range(self.stages - 1, unroll=1):
            if s < slices:
                for part in cutlass.range_constexpr(self.parts):
                    self.start(gA, heldA, sourceA, targetA + writing, m0, s * self.tile_k, part, self.copyA)
                    self.start_b(gB, heldB, sourceB, targetB + writing, n0, s * self.tile_k, part, apart)
                    self.put(heldA, targetA + writing, part, self.copyA)
                    self.put_b(heldB, targetB + writing, part)
            # A group even where there is no slice, so that all stages count alike.
            cute.arch.cp_async_commit_group()
            sourceA, sourceB, writing = sourceA + stepA, sourceB + stepB, writing + self.stage_bytes
        self.await_slice()
        self.read_step(rA, rB, startA, startB, 0)
        reading = Int32(0)
        for s in cutlass.range(slices, unroll=1):
            following = self.next_stage(reading)
            ahead = s + self.stages - 1
            k0 = ahead * self.tile_k
            for step in cutlass.range_constexpr(self.steps):
                if cutlass.const_expr(step == self.parts):
                    self.await_slice()
                    reading = following
                # One step ahead of the products; behind the last slice this reads what nobody uses.
                self.read_step(rA, rB, startA + reading, startB + reading, (step + 1) % self.steps)
                if cutlass.const_expr(step < self.parts):  # noqa: SIM102, one when compiled and one when run
                    if ahead < slices:
                        self.start(gA, heldA, sourceA, targetA + writing, m0, k0, step, self.copyA)
                        self.start_b(gB, heldB, sourceB, targetB + writing, n0, k0, step, apart)
                if cutlass.const_expr(step == self.parts - 1):
                    cute.arch.cp_async_commit_group()
                self.multiply(rA[None, None, step % 2], rB[None, None, step % 2], rC)
                if cutlass.const_expr(step < self.parts and self.by_element):  # noqa: SIM102
                    if ahead < slices:
                        self.put(heldA, targetA + writing, step, self.copyA)
                        self.put_b(heldB, targetB + writing, step)
            writing = self.next_stage(writing)
            sourceA, sourceB = sourceA + stepA, sourceB + stepB
        cute.arch.cp_async_wait_group(0)
        # What was shared memory of slices becomes that of sums.
        cute.arch.sync_threads()
        staging = cute.recast_ptr(smem, dtype=self.acc)
        inputs = None
        if cutlass.const_expr(self.epilogue is not None):
            inputs = self.epilogue.of_batch(extras, batch)
        self.end.write(gD, gC, cute.recast_tensor(rC, self.sum), staging, m0 + row, n0 + col, alpha, beta, inputs)
        if cutlass.const_expr(self.epilogue is not None):
            self.epilogue.end(inputs)

    @cute.jit
    def corner(self):
        """Return the first row and column of this warp's part of the tile."""
        tid, _, _ = cute.arch.thread_idx()
        # The same for all threads of a warp, which the compiler would not know.
        warp = cute.arch.make_warp_uniform(tid // 32)
        return warp // self.warps_n * self.warp_m, warp % self.warps_n * self.warp_n

    @cute.jit
    def start(self, gX, held, source, target, row0, k0, part: cutlass.Constexpr[int], copies):
        """Start one part of the copy of the slice at k0 of an operand."""
        if cutlass.const_expr(copies.by_element):
            copies.fetch(gX, held, source, row0, k0, part)
        else:
            copies.start(gX, source, target, row0, k0, part)

    @cute.jit
    def start_b(self, gB, held, source, target, n0, k0, part: cutlass.Constexpr[int], apart):
        """Start one part of the copies of B, and of the other B, whose slice lies behind."""
        for f in cutlass.range_constexpr(self.factors):
            behind = cutlass.const_expr(f * self.cutB.bytes)
            self.start(gB, held[f], source + apart[f], target + behind, n0, k0, part, self.copyB)

    @cute.jit
    def put_b(self, held, target, part: cutlass.Constexpr[int]):
        """Store what of them passes through registers."""
        for f in cutlass.range_constexpr(self.factors):
            self.put(held[f], target + f * self.cutB.bytes, part, self.copyB)

    @cute.jit
    def put(self, held, target, part: cutlass.Constexpr[int], copies: cutlass.Constexpr[SliceCopies]):
        """Store what passes through registers."""
        if cutlass.const_expr(copies.by_element):
            copies.put(held, target, part)

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
    def read_step(self, rA: cute.Tensor, rB: cute.Tensor, startA, startB, step: cutlass.Constexpr[int]):
        """Read this warp's fragments of one step of a slice into the registers of its parity."""
        for i in cutlass.range_constexpr(self.warp_m // ROWS):
            read_fragment(rA[None, i, step % 2], startA, self.cutA, i, step)
        for f in cutlass.range_constexpr(self.factors):
            for j in cutlass.range_constexpr(self.warp_n // ROWS):
                words = rB[None, f * (self.warp_n // ROWS) + j, step % 2]
                read_fragment(words, startB + f * self.cutB.bytes, self.cutB, j, step)

    @cute.jit
    def multiply(self, rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor):
        """Add the products of one step, to and fro: neighbouring products share an operand."""
        for i in cutlass.range_constexpr(self.warp_m // ROWS):
            finish_fragment(rA[None, i], self.cutA)
        for j in cutlass.range_constexpr(cute.size(rB, mode=[1])):
            finish_fragment(rB[None, j], self.cutB)
        count = cutlass.const_expr(cute.size(rC, mode=[2]))
        for half in cutlass.range_constexpr(self.halves):
            for i in cutlass.range_constexpr(cute.size(rC, mode=[1])):
                for place in cutlass.range(count, unroll_full=True):
                    j = place if i % 2 == 0 else count - 1 - place
                    a = tuple(rA[word, i] for word in range(4) if self.halves == 1 or word // 2 == half)
                    b = tuple(rB[j % 2 * 2 + word, j // 2] for word in range(2) if self.halves == 1 or word == half)
                    mma_sync(self.mma, rC[None, i, j], a, b)


def buildable(config: MmaSyncConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    element, out = types["a"], types["d"]
    run = int(types["run"])
    units = (1 if types["a_major"] == "k" else 0, 1 if types["b_major"] == "k" else 0)
    copies = (int(types["a_copies"]), int(types["b_copies"]))

    def operand(number: int) -> Any:
        vector = max(8 * copies[number] // cute_type(element).width, 1)
        return major_tensor(element, units[number], batch=1, vector=vector)

    results = tuple(major_tensor(out, 1, batch=1, vector=run) for _ in range(2))
    acc = cute_type(types["acc"])
    kernel = MmaSync(config, types)
    extras = () if kernel.epilogue is None else (kernel.epilogue.stand_ins(),)
    second = (operand(1),) if kernel.factors > 1 else ()
    return Buildable(kernel, (*map(operand, range(2)), *results, acc(1), acc(0), *extras, *second))
