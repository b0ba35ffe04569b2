"""Mainloop of the float32 GEMM: cp.async into k-tiles of K rows, fragments of 4 rows and 4 columns, FMAs."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.async_copy import copy_vector_async
from gemmule.kernels.parts.cp_async_mainloop import CpAsyncMainloop
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.tensors import cute_type

from .config import LANES_M, LANES_N, SECTOR, VECTOR, CpAsyncConfig
from .thread_tiles import multiply_fragments
from .vectors import read_vector

#: Bytes that the stages of an operand are aligned to: a copy whose two addresses differ modulo 32 bytes reads twice
#: the sectors from L2.
_ALIGNMENT = 128


@dataclass(frozen=True)
class _Operand:
    """One operand of a tile.

    Attributes
    ----------
    gmem, smem : Tensor
        The matrix, and the stages: (extent, k, stage), contiguous along the extent.
    vectors : Tensor
        Registers for what a K-major operand passes through.
    row0 : Int32
        The tile's first row of A, or column of B.
    k_major : bool
        Whether the matrix is contiguous along K.
    """

    gmem: Any
    smem: Any
    vectors: Any
    row0: Any
    k_major: bool


@dataclass(frozen=True)
class _Tile:
    """A tile's operands; fragments, two of each: one is read while the other is multiplied; and accumulators."""

    operands: tuple[_Operand, _Operand]
    fragments_a: Any
    fragments_b: Any
    accumulators: Any
    row: Any
    col: Any


class SimtMainloop(CpAsyncMainloop):
    """The loop over K; a step is one k.

    Parameters
    ----------
    config : CpAsyncConfig
        Tiles and stages.
    types : dict
        The signature.
    """

    def __init__(self, config: CpAsyncConfig, types: dict[str, str]) -> None:
        super().__init__(config.stages, 1, config.tile_k, config.tile_k - 1)
        self.tile_m, self.tile_n, self.tile_k = config.tile_m, config.tile_n, config.tile_k
        self.warps_m, self.warps_n, self.threads = config.warps_m, config.warps_n, config.threads
        # Vectors of a thread tile: rows or columns, one for every pass of the lanes over the warp tile.
        self.vectors_m = self.tile_m // (self.warps_m * LANES_M * VECTOR)
        self.vectors_n = self.tile_n // (self.warps_n * LANES_N * VECTOR)
        self.element = cute_type(types["element"])
        self.k_major = (types["a_major"] == "k", types["b_major"] == "k")
        self.lds = tuple(
            config.leading_dimension(extent, k_major)
            for extent, k_major in zip((self.tile_m, self.tile_n), self.k_major, strict=True)
        )
        self.wide, self.whole = types["copies"] == "16", types["tiles"] == "whole"

    @cute.jit
    def multiply_tile(self, gA: cute.Tensor, gB: cute.Tensor, m0, n0, alpha):
        """Return the accumulators of the tile at (m0, n0); where alpha is 0 they are zeros, and nothing is read."""
        smem = SmemAllocator()
        sA = self.allocate(smem, self.tile_m, self.lds[0])
        sB = self.allocate(smem, self.tile_n, self.lds[1])
        row, col = self.corner()
        rA = cute.make_rmem_tensor(cute.make_layout((VECTOR, self.vectors_m, 2)), self.element)
        rB = cute.make_rmem_tensor(cute.make_layout((VECTOR, self.vectors_n, 2)), self.element)
        rC = cute.make_rmem_tensor(cute.make_layout((VECTOR * self.vectors_m, VECTOR * self.vectors_n)), self.element)
        rC.fill(self.element(0))
        wait_for_predecessor()
        a = _Operand(gA, sA, self.registers(self.tile_m, self.k_major[0]), m0, self.k_major[0])
        b = _Operand(gB, sB, self.registers(self.tile_n, self.k_major[1]), n0, self.k_major[1])
        depth = gA.shape[1] if alpha != 0 else 0
        self.accumulate(_Tile((a, b), rA, rB, rC, row, col), (), cute.ceil_div(depth, self.tile_k))
        return rC

    @cute.jit
    def fill(self, tile, sources, k_tiles):
        """Issue the copies of all stages but one: as `CpAsyncMainloop.fill`, but unrolled."""
        for k_tile in cutlass.range_constexpr(self.stages - 1):
            if k_tile < k_tiles:
                for step in cutlass.range_constexpr(self.copy_steps):
                    self.issue(tile, sources, k_tile, k_tile, step)
            cute.arch.cp_async_commit_group()
        return sources, cutlass.Int32(self.stages - 1)

    @cute.jit
    def next_stage(self, stage):
        """Return the stage after one in the ring: as `CpAsyncMainloop.next_stage`, compared after the increment."""
        return stage + 1 if stage + 1 < self.stages else 0

    @cute.jit
    def allocate(self, smem, extent: cutlass.Constexpr[int], ld: cutlass.Constexpr[int]):
        """Return the stages of an operand: `extent` contiguous elements of each k, the next k `ld` elements further."""
        layout = cute.make_layout((extent, self.tile_k, self.stages), stride=(1, ld, ld * self.tile_k))
        return smem.allocate_tensor(self.element, layout, _ALIGNMENT)

    @cute.jit
    def corner(self):
        """Return this thread's first row and column in the tile."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        row = warp // self.warps_n * (self.tile_m // self.warps_m) + lane // LANES_N * VECTOR
        col = warp % self.warps_n * (self.tile_n // self.warps_n) + lane % LANES_N * VECTOR
        return row, col

    def row(self, i: int) -> int:
        """Return row i of a thread tile, from its first one."""
        return i // VECTOR * LANES_M * VECTOR + i % VECTOR

    def col(self, j: int) -> int:
        """Return column j of a thread tile, from its first one."""
        return j // VECTOR * LANES_N * VECTOR + j % VECTOR

    @cute.jit
    def registers(self, extent: cutlass.Constexpr[int], k_major: cutlass.Constexpr[bool]):
        """Return registers for the vectors of an operand that passes through registers."""
        count = cutlass.const_expr(extent * self.tile_k // (VECTOR * self.threads) if k_major else 1)
        return cute.make_rmem_tensor(cute.make_layout((VECTOR, count)), self.element)

    def issue(self, tile: _Tile, sources: Any, stage: Any, k_tile: Any, step: int) -> None:
        del sources
        for operand in tile.operands:
            (self.transpose if operand.k_major else self.copy)(operand, k_tile * self.tile_k, stage, step)

    @cute.jit
    def transpose(self, operand, k0, stage, step: cutlass.Constexpr[int]):
        """Load vectors along K in the first step, and store them transposed in the last but one."""
        tid, _, _ = cute.arch.thread_idx()
        sX, vectors = operand.smem, operand.vectors
        extent = cutlass.const_expr(cute.size(sX, mode=[0]))
        for p in cutlass.range_constexpr(cute.size(vectors, mode=[1])):
            e = (tid + p * self.threads) * VECTOR
            # A warp takes 16 rows by 8 k: whole sectors of device memory, and all banks of the padded columns.
            r, k = e // SECTOR % extent, e % SECTOR + e // (SECTOR * extent) * SECTOR
            if cutlass.const_expr(step == 0):
                loaded = read_vector(operand.gmem, operand.row0 + r, k0 + k, VECTOR, self.whole)
                cute.autovec_copy(loaded, vectors[None, p])
            if cutlass.const_expr(step == self.tile_k - 2):
                for v in cutlass.range_constexpr(VECTOR):
                    sX[r, k + v, stage] = vectors[v, p]

    @cute.jit
    def copy(self, operand, k0, stage, step: cutlass.Constexpr[int]):
        """Issue a step's share of the asynchronous copies, zeros outside the matrix; the last step has none."""
        tid, _, _ = cute.arch.thread_idx()
        gX, sX = operand.gmem, operand.smem
        extent = cutlass.const_expr(cute.size(sX, mode=[0]))
        length = cutlass.const_expr(VECTOR if self.wide else 1)
        count = cutlass.const_expr(extent * self.tile_k // (length * self.threads))
        for p in cutlass.range_constexpr(count):
            if cutlass.const_expr(p * (self.tile_k - 1) // count == step):
                e = (tid + p * self.threads) * length
                r, k = e % extent, e // extent
                valid = None
                if cutlass.const_expr(not self.whole):
                    valid = cutlass.min(cutlass.max(gX.shape[0] - operand.row0 - r, 0), length)
                    valid = valid if k0 + k < gX.shape[1] else 0
                source = gX.iterator + cute.crd2idx((operand.row0 + r, k0 + k), gX.layout)
                copy_vector_async(sX.iterator + cute.crd2idx((r, k, stage), sX.layout), source, length, valid)

    @cute.jit
    def read(self, tile, stage, step: cutlass.Constexpr[int]):
        """Read this thread's vectors of one k into the registers of its parity."""
        (a, b), rA, rB, parity = tile.operands, tile.fragments_a, tile.fragments_b, cutlass.const_expr(step % 2)
        for v in cutlass.range(VECTOR, unroll_full=True):
            for f in cutlass.range_constexpr(self.vectors_m):
                rA[v, f, parity] = a.smem[tile.row + f * LANES_M * VECTOR + v, step, stage]
            for f in cutlass.range_constexpr(self.vectors_n):
                rB[v, f, parity] = b.smem[tile.col + f * LANES_N * VECTOR + v, step, stage]

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Add the products of one k."""
        del stage
        rA, rB = tile.fragments_a[None, None, step % 2], tile.fragments_b[None, None, step % 2]
        multiply_fragments(rA, rB, tile.accumulators)
