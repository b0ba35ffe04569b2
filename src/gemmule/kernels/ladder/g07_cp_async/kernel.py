"""Rung 7: asynchronous copies, several stages deep, in all four layouts.

Idea
    The copy unit moves slices from device memory into shared memory without passing through registers, several
    slices ahead. The registers that this frees hold larger squares of sums: 16 x 8 a thread, of a 128 x 256 tile.
Change from the rung before
    Asynchronous copies into `stages` buffers instead of two, spread over the steps of a slice; fragments of A and B are
    read one step ahead of their products; a warp computes a square of 64 x 64, its lanes 4 x 8. An operand that lies
    along K still passes through registers: it must be transposed on its way, which the asynchronous copies could do
    only 4 bytes at a time.
Data movement
    The tile of 128 x 256: 42.7 FLOP a byte. Per step of k a thread reads 6 runs of 16 bytes for 128 multiply-adds.
Limits
    About nine of ten instructions of the main loop are multiply-adds: the others read shared memory and find the
    addresses of copies, in every thread. With 8 warps a multiprocessor, whatever the two of a scheduler wait for shows.
Sources
    NVIDIA CUTLASS, "Efficient GEMM in CUDA": the hierarchy of CTA, warp and thread tiles.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.async_copy import copy_run_async
from gemmule.kernels.parts.pdl import await_launch_before
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.simt.vectors import read_run, write_run

from .spec import LANES_M, LANES_N, LINE, RUN, SECTOR, CpAsyncConfig


class CpAsync:
    """D = alpha * A @ B + beta * C for A (M, K, L), B (N, K, L), row-major C and D (M, N, L)."""

    def __init__(self, config: CpAsyncConfig, types: dict[str, str]) -> None:
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, config.tile_k
        self.warps_m, self.warps_n, self.threads = config.warps_m, config.warps_n, config.threads
        self.stages = config.stages
        self.group = config.group
        # Runs of a thread's square: RUN rows or columns each, one for every pass of the lanes over the warp's square.
        self.runs_m = self.tile_m // (self.warps_m * LANES_M * RUN)
        self.runs_n = self.tile_n // (self.warps_n * LANES_N * RUN)
        self.element = cute_type(types["element"])
        self.along_k = (types["a"] == "k", types["b"] == "k")
        self.leads = (config.lead(self.tile_m, self.along_k[0]), config.lead(self.tile_n, self.along_k[1]))
        self.wide, self.whole = types["copies"] == "16", types["tiles"] == "whole"

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        self.kernel(mA, mB, mC, mD, alpha, beta).launch(
            grid=(tiles_m * tiles_n * mD.shape[2], 1, 1), block=(self.threads, 1, 1), min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta):
        cta, _, _ = cute.arch.block_idx()
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        tile_m, tile_n = grouped_tile(cta % (tiles_m * tiles_n), tiles_m, tiles_n, self.group)
        batch = cta // (tiles_m * tiles_n)
        gA, gB, gC, gD = (mX[None, None, batch] for mX in (mA, mB, mC, mD))
        self.compute(gA, gB, gC, gD, alpha, beta, tile_m * self.tile_m, tile_n * self.tile_n)

    @cute.jit
    def compute(self, gA: cute.Tensor, gB: cute.Tensor, gC: cute.Tensor, gD: cute.Tensor, alpha, beta, m0, n0):
        """Compute the tile that begins at (m0, n0)."""
        smem = SmemAllocator()
        sA = self.allocate(smem, self.tile_m, self.leads[0])
        sB = self.allocate(smem, self.tile_n, self.leads[1])
        row, col = self.corner()
        # Two of each: one is read while the other is used.
        rA = cute.make_rmem_tensor(cute.make_layout((RUN, self.runs_m, 2)), self.element)
        rB = cute.make_rmem_tensor(cute.make_layout((RUN, self.runs_n, 2)), self.element)
        rC = cute.make_rmem_tensor(cute.make_layout((RUN * self.runs_m, RUN * self.runs_n)), self.element)
        rC.fill(self.element(0))
        await_launch_before()

        rowsA, rowsB = self.passing(self.tile_m, self.along_k[0]), self.passing(self.tile_n, self.along_k[1])

        depth = gA.shape[1] if alpha != 0 else 0
        slices = cute.ceil_div(depth, self.tile_k)
        for s in cutlass.range_constexpr(self.stages - 1):
            if s < slices:
                for k in cutlass.range_constexpr(self.tile_k - 1):
                    self.copy_step(gA, sA, rowsA, m0, s, s, k, self.along_k[0])
                    self.copy_step(gB, sB, rowsB, n0, s, s, k, self.along_k[1])
            # A group even where there is no slice, so that all stages count alike.
            cute.arch.cp_async_commit_group()
        self.await_slice()
        self.read_step(sA, sB, rA, rB, row, col, 0, 0)
        reading, writing = cutlass.Int32(0), cutlass.Int32(self.stages - 1)
        for s in cutlass.range(slices):
            following = reading + 1 if reading + 1 < self.stages else 0
            for k in cutlass.range_constexpr(self.tile_k):
                if cutlass.const_expr(k == self.tile_k - 1):
                    self.await_slice()
                    reading = following
                # One step ahead of the products; behind the last slice this reads what nobody uses.
                self.read_step(sA, sB, rA, rB, row, col, (k + 1) % self.tile_k, reading)
                if s + self.stages - 1 < slices:
                    self.copy_step(gA, sA, rowsA, m0, s + self.stages - 1, writing, k, self.along_k[0])
                    self.copy_step(gB, sB, rowsB, n0, s + self.stages - 1, writing, k, self.along_k[1])
                if cutlass.const_expr(k == self.tile_k - 2):
                    cute.arch.cp_async_commit_group()
                self.multiply(rA[None, None, k % 2], rB[None, None, k % 2], rC)
            writing = writing + 1 if writing + 1 < self.stages else 0
        cute.arch.cp_async_wait_group(0)
        self.finish(gD, gC, rC, m0 + row, n0 + col, alpha, beta)

    @cute.jit
    def allocate(self, smem, extent: cutlass.Constexpr[int], lead: cutlass.Constexpr[int]):
        """Return the buffers of an operand: `extent` neighbours of each k, the next k `lead` elements further."""
        layout = cute.make_layout((extent, self.tile_k, self.stages), stride=(1, lead, lead * self.tile_k))
        # A copy reads twice the sectors from L2 where its two places differ modulo 32 bytes.
        return smem.allocate_tensor(self.element, layout, LINE)

    @cute.jit
    def corner(self):
        """Return this thread's first row and column in the tile."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        row = warp // self.warps_n * (self.tile_m // self.warps_m) + lane // LANES_N * RUN
        col = warp % self.warps_n * (self.tile_n // self.warps_n) + lane % LANES_N * RUN
        return row, col

    @cute.jit
    def passing(self, extent: cutlass.Constexpr[int], along_k: cutlass.Constexpr[bool]):
        """Return registers for the runs of an operand that passes through registers."""
        count = cutlass.const_expr(extent * self.tile_k // (RUN * self.threads) if along_k else 1)
        return cute.make_rmem_tensor(cute.make_layout((RUN, count)), self.element)

    @cute.jit
    def copy_step(self, gX, sX, runs, row0, s, stage, k: cutlass.Constexpr[int], along_k: cutlass.Constexpr[bool]):
        """Do what step k has to do for the copy of slice s of one operand into a stage."""
        if cutlass.const_expr(along_k):
            self.pass_step(gX, sX, runs, row0, s * self.tile_k, stage, k)
        else:
            self.async_step(gX, sX, row0, s * self.tile_k, stage, k)

    @cute.jit
    def pass_step(self, gX: cute.Tensor, sX: cute.Tensor, runs, row0, k0, stage, k: cutlass.Constexpr[int]):
        """Load runs that lie along K in the first step, and write them across in the last but one."""
        tid, _, _ = cute.arch.thread_idx()
        extent = cutlass.const_expr(cute.size(sX, mode=[0]))
        for p in cutlass.range_constexpr(cute.size(runs, mode=[1])):
            e = (tid + p * self.threads) * RUN
            # A warp takes 16 rows by 8 k: whole sectors of device memory, and all banks of the padded columns.
            r, j = e // SECTOR % extent, e % SECTOR + e // (SECTOR * extent) * SECTOR
            if cutlass.const_expr(k == 0):
                cute.autovec_copy(read_run(gX, row0 + r, k0 + j, RUN, self.whole), runs[None, p])
            if cutlass.const_expr(k == self.tile_k - 2):
                for v in cutlass.range_constexpr(RUN):
                    sX[r, j + v, stage] = runs[v, p]

    @cute.jit
    def async_step(self, gX: cute.Tensor, sX: cute.Tensor, row0, k0, stage, k: cutlass.Constexpr[int]):
        """Start this step's share of the asynchronous copies, zeros outside the matrix; the last step has none."""
        tid, _, _ = cute.arch.thread_idx()
        extent = cutlass.const_expr(cute.size(sX, mode=[0]))
        length = cutlass.const_expr(RUN if self.wide else 1)
        count = cutlass.const_expr(extent * self.tile_k // (length * self.threads))
        for p in cutlass.range_constexpr(count):
            if cutlass.const_expr(p * (self.tile_k - 1) // count == k):
                e = (tid + p * self.threads) * length
                r, j = e % extent, e // extent
                valid = None
                if cutlass.const_expr(not self.whole):
                    valid = cutlass.min(cutlass.max(gX.shape[0] - row0 - r, 0), length)
                    valid = valid if k0 + j < gX.shape[1] else 0
                source = gX.iterator + cute.crd2idx((row0 + r, k0 + j), gX.layout)
                copy_run_async(sX.iterator + cute.crd2idx((r, j, stage), sX.layout), source, length, valid)

    @cute.jit
    def await_slice(self):
        """Wait until the oldest slice in flight has arrived, for every thread."""
        cute.arch.cp_async_wait_group(self.stages - 2)
        cute.arch.sync_threads()

    @cute.jit
    def read_step(self, sA, sB, rA, rB, row, col, k: cutlass.Constexpr[int], stage):
        """Read this thread's runs of one k into the registers of its parity."""
        for v in cutlass.range(RUN, unroll_full=True):
            for f in cutlass.range_constexpr(self.runs_m):
                rA[v, f, k % 2] = sA[row + f * LANES_M * RUN + v, k, stage]
            for f in cutlass.range_constexpr(self.runs_n):
                rB[v, f, k % 2] = sB[col + f * LANES_N * RUN + v, k, stage]

    @cute.jit
    def multiply(self, rA: cute.Tensor, rB: cute.Tensor, rC: cute.Tensor):
        """Add the products of one k, to and fro: neighbouring multiply-adds share an operand, which is read once."""
        for i in cutlass.range(RUN * self.runs_m, unroll_full=True):
            for step in cutlass.range(RUN * self.runs_n, unroll_full=True):
                j = step if i % 2 == 0 else RUN * self.runs_n - 1 - step
                rC[i, j] += rA[i % RUN, i // RUN] * rB[j % RUN, j // RUN]

    @cute.jit
    def finish(self, gD: cute.Tensor, gC: cute.Tensor, rC: cute.Tensor, m, n, alpha, beta):
        """Write this thread's square, which begins at (m, n)."""
        for i in cutlass.range_constexpr(RUN * self.runs_m):
            for f in cutlass.range_constexpr(self.runs_n):
                run = cute.make_rmem_tensor(cute.make_layout(RUN), self.element)
                for v in cutlass.range_constexpr(RUN):
                    run[v] = rC[i, f * RUN + v]
                row = m + i // RUN * LANES_M * RUN + i % RUN
                write_run(gD, gC, row, n + f * LANES_N * RUN, run, alpha, beta, self.whole)


def buildable(config: CpAsyncConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    name = types["element"]
    units = (1 if types["a"] == "k" else 0, 1 if types["b"] == "k" else 0, 1, 1)
    vector = RUN if types["copies"] == "16" else 1
    tensors = tuple(major_tensor(name, unit, batch=1, vector=vector) for unit in units)
    return Buildable(CpAsync(config, types), (*tensors, cute_type(name)(1), cute_type(name)(0)))
