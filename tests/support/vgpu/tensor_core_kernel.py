"""A small kernel of the tests' own: C = A @ B.T on tensor cores, with cp.async, ldmatrix and stmatrix."""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import CopyUniversalOp, cpasync, warp
from cutlass.memory import SmemAllocator

TILE_M, TILE_N, TILE_K = 64, 64, 32
THREADS = 128
_RUN = 8


class TensorCoreProduct:
    """A (M, K), B (N, K) and C (M, N), row-major; tiles divide the shapes."""

    def __init__(self, element):
        self.element = element

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
        op = warp.MmaF16BF16Op(self.element, cutlass.Float32, (16, 8, 16))
        tiled_mma = cute.make_tiled_mma(op, cute.make_layout((2, 2, 1)), permutation_mnk=(32, 32, 16))
        rows = THREADS // (TILE_K // _RUN)
        threads = cute.make_layout((rows, TILE_K // _RUN), stride=(TILE_K // _RUN, 1))
        values = cute.make_layout((1, _RUN))
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), self.element, num_bits_per_copy=128)
        copy = cute.make_tiled_copy_tv(atom, threads, values)
        grid = (mC.shape[0] // TILE_M, mC.shape[1] // TILE_N, 1)
        self.kernel(mA, mB, mC, tiled_mma, copy).launch(grid=grid, block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        mC: cute.Tensor,
        tiled_mma: cute.TiledMma,
        copy: cute.TiledCopy,
    ):
        tid, _, _ = cute.arch.thread_idx()
        bx, by, _ = cute.arch.block_idx()
        smem = SmemAllocator()
        # Rows of 40 elements: eight of them lie in different banks.
        staged = cute.make_layout((TILE_M, TILE_K), stride=(TILE_K + _RUN, 1))
        sA, sB = smem.allocate_tensor(self.element, staged, 16), smem.allocate_tensor(self.element, staged, 16)
        sC = smem.allocate_tensor(self.element, cute.make_layout((TILE_M, TILE_N), stride=(TILE_N + _RUN, 1)), 16)
        gA = cute.local_tile(mA, (TILE_M, TILE_K), (bx, None))
        gB = cute.local_tile(mB, (TILE_N, TILE_K), (by, None))
        gC = cute.local_tile(mC, (TILE_M, TILE_N), (bx, by))

        mine = copy.get_slice(tid)
        mma = tiled_mma.get_slice(tid)
        tCrA, tCrB = (tiled_mma.make_fragment_A(mma.partition_A(sA)), tiled_mma.make_fragment_B(mma.partition_B(sB)))
        tCrC = tiled_mma.make_fragment_C(mma.partition_C(sC))
        tCrC.fill(0.0)
        load = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.element)
        load_a, load_b = cute.make_tiled_copy_A(load, tiled_mma), cute.make_tiled_copy_B(load, tiled_mma)
        my_a, my_b = load_a.get_slice(tid), load_b.get_slice(tid)
        for s in cutlass.range(cute.size(gA, mode=[2])):
            cute.copy(copy, mine.partition_S(gA[None, None, s]), mine.partition_D(sA))
            cute.copy(copy, mine.partition_S(gB[None, None, s]), mine.partition_D(sB))
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()
            cute.copy(load_a, my_a.partition_S(sA), my_a.retile(tCrA))
            cute.copy(load_b, my_b.partition_S(sB), my_b.retile(tCrB))
            cute.gemm(tiled_mma, tCrC, tCrA, tCrB, tCrC)
            cute.arch.sync_threads()

        tCrD = cute.make_fragment_like(tCrC, self.element)
        tCrD.store(tCrC.load().to(self.element))
        store = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.element)
        tiled_store = cute.make_tiled_copy_C(store, tiled_mma)
        cute.copy(tiled_store, tiled_store.get_slice(tid).retile(tCrD), tiled_store.get_slice(tid).partition_D(sC))
        cute.arch.sync_threads()
        wide = cute.make_copy_atom(CopyUniversalOp(), self.element, num_bits_per_copy=128)
        per_row = TILE_N // _RUN
        threads = cute.make_layout((THREADS // per_row, per_row), stride=(per_row, 1))
        out = cute.make_tiled_copy_tv(wide, threads, cute.make_layout((1, _RUN))).get_slice(tid)
        cute.copy(wide, out.partition_S(sC), out.partition_D(gC))
