"""Mainloop of the float32 GEMM: cp.async into panels or lines, fragments of vectors of rows or of k, FMAs."""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.cp_async_mainloop import CpAsyncMainloop
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.stage_copies import OperandCopies, StageCopies
from gemmule.kernels.simt.config import LANES_M, LANES_N, VECTOR, SimtConfig
from gemmule.kernels.simt.stage import LineStage, PaddedCopies, PanelStage, TransposingCopies
from gemmule.kernels.simt.thread_tiles import multiply_fragments

_ALIGNMENT = 1024


@dataclasses.dataclass(frozen=True)
class _Tile:
    """A tile's operands, and a thread's registers.

    Attributes
    ----------
    a, b : OperandCopies
        Copies of A and of B.
    start_a, start_b : Int32
        Address of this thread's first vector in the first stage.
    fragments_a, fragments_b : Tensor
        Rows and columns of two steps, (4, vectors, k, 2): one is read while the other is multiplied.
    accumulators : Tensor
        Accumulators, (rows, columns).
    """

    a: OperandCopies
    b: OperandCopies
    start_a: Any
    start_b: Any
    fragments_a: Any
    fragments_b: Any
    accumulators: Any


class SimtGemmMainloop(CpAsyncMainloop):
    """The loop over K; a step is one k, or 4 where an operand is read in vectors of k.

    Parameters
    ----------
    config : SimtConfig
        Tiles and stages.
    types : dict
        The signature.
    """

    def __init__(self, config: SimtConfig, types: dict[str, str]) -> None:
        self.config, self.cluster_k = config, config.cluster_k
        self.warp_m, self.warp_n = config.tile_m // config.warps_m, config.tile_n // config.warps_n
        self.stageA, copiesA = _stage(config.tile_m, config.tile_k, types["a_major"], int(types["a_copies"]))
        self.stageB, copiesB = _stage(config.tile_n, config.tile_k, types["b_major"], int(types["b_copies"]))
        self.bytes = self.stageA.stage_bytes + self.stageB.stage_bytes
        self.k = k_of_step(types)
        steps = config.tile_k // self.k
        super().__init__(config.stages, self.bytes, steps, steps - 1)
        whole = types["tiles"] == "whole"
        self.copyA, self.copyB = (
            copies(stage, int(types[size]), config.threads, self.copy_steps, whole)
            for copies, stage, size in ((copiesA, self.stageA, "a_copies"), (copiesB, self.stageB, "b_copies"))
        )

    @cute.jit
    def multiply_tile(self, gA: cute.Tensor, gB: cute.Tensor, m0, n0, alpha, rank):
        """Return a thread's accumulators, or in a cluster those of this CTA's part of K, and the stages' address.

        Where alpha is 0 the accumulators are zeros, and nothing is read.
        """
        smem = SmemAllocator().allocate(self.stages * self.bytes, _ALIGNMENT)
        row, col = self.corner()
        rows, cols = cutlass.const_expr((self.config.thread_m, self.config.thread_n))
        rA, rB = self._fragments(self.stageA, rows), self._fragments(self.stageB, cols)
        rC = cute.make_rmem_tensor(cute.make_layout((rows, cols), stride=(cols, 1)), Float32)
        rC.fill(Float32(0))
        wait_for_predecessor()

        stagesA = smem.toint()
        stagesB = stagesA + self.stageA.stage_bytes
        depth = gA.shape[1] if alpha != 0 else 0
        k_tiles, first = cute.ceil_div(depth, self.config.tile_k), Int32(0)
        if cutlass.const_expr(self.cluster_k > 1):
            # CTAs of a cluster take consecutive parts of K.
            first, k_tiles = k_tiles * rank // self.cluster_k, k_tiles * (rank + 1) // self.cluster_k
            k_tiles -= first
        strideA, strideB = self.copyA.k_tile_stride(gA), self.copyB.k_tile_stride(gB)
        sources = self.copyA.source(gA, m0) + first * strideA, self.copyB.source(gB, n0) + first * strideB
        k0 = first * self.config.tile_k
        a = OperandCopies(self.copyA, gA, m0, k0, stagesA + self.copyA.target(), strideA)
        b = OperandCopies(self.copyB, gB, n0, k0, stagesB + self.copyB.target(), strideB)
        startA, startB = stagesA + self.stageA.offset(row, 0), stagesB + self.stageB.offset(col, 0)
        self.accumulate(_Tile(a, b, startA, startB, rA, rB, rC), sources, k_tiles)
        return rC, stagesA

    @cute.jit
    def corner(self):
        """Return this thread's first row and column in the tile."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        row = warp // self.config.warps_n * self.warp_m + lane // LANES_N * VECTOR
        col = warp % self.config.warps_n * self.warp_n + lane % LANES_N * VECTOR
        return row, col

    def issue(self, tile: _Tile, sources: Any, stage: Any, k_tile: Any, step: int) -> None:
        for operand, source in zip((tile.a, tile.b), sources, strict=True):
            operand.issue(source, stage, k_tile, step)

    def advance(self, tile: _Tile, sources: Any) -> Any:
        return sources[0] + tile.a.stride, sources[1] + tile.b.stride

    @cute.jit
    def read(self, tile, stage, step: cutlass.Constexpr[int]):
        """Read this thread's vectors of one step into the registers of its parity."""
        parity, k = cutlass.const_expr((step % 2, step * self.k))
        _read(tile.fragments_a[None, None, None, parity], self.stageA, tile.start_a + stage, LANES_M, k)
        _read(tile.fragments_b[None, None, None, parity], self.stageB, tile.start_b + stage, LANES_N, k)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Add the products of one step, one k after the other."""
        del stage
        parity = cutlass.const_expr(step % 2)
        for k in cutlass.range_constexpr(self.k):
            multiply_fragments(
                tile.fragments_a[None, None, k, parity], tile.fragments_b[None, None, k, parity], tile.accumulators
            )

    def _fragments(self, stage: PanelStage | LineStage, rows: int) -> cute.Tensor:
        """Return registers for rows of two steps, those of a vector contiguous."""
        of_row, of_k = (self.k, 1) if isinstance(stage, LineStage) else (1, rows)
        shape = (VECTOR, rows // VECTOR, self.k, 2)
        return cute.make_rmem_tensor(
            cute.make_layout(shape, stride=(of_row, VECTOR * of_row, of_k, rows * self.k)), Float32
        )


def k_of_step(types: dict[str, str]) -> int:
    """Return the k of a step: those of a vector where a K-major operand is read along K, else one."""
    return (
        VECTOR if ("k", "16") in [(types["a_major"], types["a_copies"]), (types["b_major"], types["b_copies"])] else 1
    )


def _stage(extent: int, depth: int, major: str, size: int) -> tuple[PanelStage | LineStage, type[StageCopies]]:
    """Return the layout of an operand's stages, and the kind of copies that fill them."""
    if major != "k":
        return PanelStage(extent, depth, k_major=False), StageCopies
    if size == VECTOR * FLOAT32.itemsize:
        return LineStage(extent, depth, k_major=True), PaddedCopies
    return PanelStage(extent, depth, k_major=True), TransposingCopies


@cute.jit
def _read(
    fragments: cute.Tensor,
    stage: cutlass.Constexpr[Any],
    start,
    lanes: cutlass.Constexpr[int],
    k0: cutlass.Constexpr[int],
):
    """Read fragments (4, vectors, k) from `k0` on; the vectors of a thread are `lanes` apart."""
    vectors, depth = cutlass.const_expr((cute.size(fragments, mode=[1]), cute.size(fragments, mode=[2])))
    for f in cutlass.range_constexpr(vectors):
        if cutlass.const_expr(isinstance(stage, LineStage)):
            for v in cutlass.range_constexpr(VECTOR):
                offset = cutlass.const_expr(stage.offset(f * lanes * VECTOR + v, k0))
                _read_vector(fragments[v, f, None], start + offset)
        else:
            for k in cutlass.range_constexpr(depth):
                offset = cutlass.const_expr(stage.offset(f * lanes * VECTOR, k0 + k))
                _read_vector(fragments[None, f, k], start + offset)


@cute.jit
def _read_vector(vector: cute.Tensor, address):
    place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=VECTOR * Float32.width // 8)
    cute.autovec_copy(cute.make_tensor(place, cute.make_layout(VECTOR)), vector)
