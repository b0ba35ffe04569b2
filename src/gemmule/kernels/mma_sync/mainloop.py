"""Mainloop of the mma.sync GEMM: cp.async into swizzled stages, ldmatrix, mma.sync."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.cp_async_mainloop import WarpTileMainloop
from gemmule.kernels.parts.mma_sync import mma_name, mma_sync
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.stage_copies import MaskedCopies, MaskedOperand, OperandCopies, StageCopies
from gemmule.kernels.parts.tensors import cute_type

from .config import MmaSyncConfig
from .swizzled_stage import K_BYTES, ROWS, SwizzledStage


@dataclass(frozen=True)
class _Tile:
    """A tile's operands, and a thread's registers."""

    a: OperandCopies  #: Copies of A.
    #: Copies of B, and of the second B of a gated activation, and how many bytes further each is in device memory.
    bs: tuple[tuple[OperandCopies, Any], ...]
    #: start_a, start_b: Int32. This thread's parts of the first fragments in the first stage.
    start_a: Any
    start_b: Any
    #: fragments_a, fragments_b: Tensor. Fragments, two of each: one is loaded while the other is multiplied.
    fragments_a: Any
    fragments_b: Any
    accumulators: Any  #: Tensor. Accumulators.


class MmaSyncMainloop(WarpTileMainloop):
    """The loop over K; a step is 32 bytes of K.

    Parameters
    ----------
    config : MmaSyncConfig
        Tiles and stages.
    num_b : int
        Number of matrices B: 2 for a gated activation.
    """

    index_first = True
    unroll = 1

    def __init__(self, config: MmaSyncConfig, types: dict[str, str], num_b: int) -> None:
        self.num_b = num_b
        self.tile_m, self.tile_n = config.tile_m, config.tile_n // num_b
        self.warps_n, self.threads, self.cluster_k = config.warps_n, config.threads, config.cluster_k
        self.warp_m, self.warp_n = self.tile_m // config.warps_m, self.tile_n // config.warps_n
        self.element, self.acc = cute_type(types["a"]), cute_type(types["acc"])
        itemsize = self.element.width // 8
        self.tile_k = config.k_bytes // itemsize
        whole = types["tiles"] == "whole"
        self.stageA = SwizzledStage(self.tile_m, self.tile_k, types["a_major"] == "k", itemsize, rows_first=True)
        self.stageB = SwizzledStage(self.tile_n, self.tile_k, types["b_major"] == "k", itemsize, rows_first=False)
        steps = config.k_bytes // K_BYTES
        # The last step waits for an older k-tile.
        super().__init__(config.stages, self.stageA.bytes + num_b * self.stageB.bytes, steps, steps - 1)
        self.copyA, self.copyB = (
            # A piece of one element is inside the matrix or not: one bit.
            MaskedCopies(stage, itemsize, self.threads, self.copy_steps, whole, chained=True)
            if int(types[size]) == itemsize == 4
            else StageCopies(stage, int(types[size]), self.threads, self.copy_steps, whole)
            for stage, size in ((self.stageA, "a_copies"), (self.stageB, "b_copies"))
        )
        self.stores = self.copyA.by_element or self.copyB.by_element
        # An mma.sync takes all of a fragment, or one half of its K after the other.
        self.halves = K_BYTES // config.mma_k_bytes
        accumulators = "float16" if config.sum_bits == 16 else types["acc"]
        self.accumulator, self.words = cute_type(accumulators), 4 * config.sum_bits // 32
        self.mma = mma_name(types["a"], accumulators, config.mma_k_bytes)

    @cute.jit
    def multiply_tile(self, gA: cute.Tensor, gB: cute.Tensor, second, m0, n0, alpha, part):
        """Return the accumulators of a warp tile, the stages' memory, and the warp tile's first row and column.

        `part` is which part of K they are of, and how many there are. `second` is the second B of a gated activation
        (N, K, L), else None, and its matrix of the batch.

        With alpha = 0 the accumulators are zeros, and nothing is read.
        """
        smem = SmemAllocator().allocate(self.stages * self.stride, 1024)
        row, col = self.corner()
        rA = cute.make_rmem_tensor(cute.make_layout((4, self.warp_m // ROWS, 2)), Int32)
        cols = cutlass.const_expr(self.num_b * self.warp_n)
        rB = cute.make_rmem_tensor(cute.make_layout((4, cols // ROWS, 2)), Int32)
        rC = cute.make_rmem_tensor(cute.make_layout((self.words, self.warp_m // 16, cols // 8)), Int32)
        rC.fill(Int32(0))
        registersA, registersB = self.copyA.registers(), tuple(self.copyB.registers() for _ in range(self.num_b))
        distances: Any = (0,)
        if cutlass.const_expr(self.num_b > 1):
            distances = (0, second[0][None, None, second[1]].iterator.toint() - gB.iterator.toint())
        sources = self.copyA.source(gA, m0), self.copyB.source(gB, n0)
        stagesA = smem.toint()
        stagesB = stagesA + self.stageA.bytes
        targetA, targetB = stagesA + self.copyA.target(), stagesB + self.copyB.target()
        startA, startB = stagesA + self.stageA.fragment_place(row), stagesB + self.stageB.fragment_place(col)

        depth = gA.shape[1] if alpha != 0 else 0
        k_tiles, first, k0 = cute.ceil_div(depth, self.tile_k), None, 0
        strideA, strideB = self.copyA.k_tile_stride(gA), self.copyB.k_tile_stride(gB)
        index, parts = part
        if cutlass.const_expr(not isinstance(parts, int) or parts > 1):
            # CTAs of a cluster take consecutive parts of K.
            first, k_tiles = k_tiles * index // parts, k_tiles * (index + 1) // parts
            k_tiles, k0 = k_tiles - first, first * self.tile_k
            sources = sources[0] + first * strideA, sources[1] + first * strideB
        a = self.operand(self.copyA, gA, (m0, k0, first), targetA, strideA, registersA)
        bs = tuple(
            (
                self.operand(self.copyB, gB, (n0, k0, first), targetB, strideB, registers, f * self.stageB.bytes),
                distance,
            )
            for f, (registers, distance) in enumerate(zip(registersB, distances, strict=True))
        )
        wait_for_predecessor((*sources, targetA, targetB, startA, startB))
        self.accumulate(_Tile(a, bs, startA, startB, rA, rB, rC), sources, k_tiles)
        return cute.recast_tensor(rC, self.accumulator), cute.recast_ptr(smem, dtype=self.acc), (row, col)

    def operand(
        self, copies: StageCopies, gX: Any, begin: Any, target: Any, stride: Any, registers: Any, offset: int = 0
    ) -> OperandCopies:
        """Return the copies of an operand; `begin` are the first row, element of K, and k-tile, None if that is 0."""
        row0, k0, first = begin
        if isinstance(copies, MaskedCopies):
            return MaskedOperand.of(copies, gX, row0, first, target + offset, stride)
        return OperandCopies(copies, gX, row0, k0, target, stride, registers, offset)

    def issue(self, tile: _Tile, sources: Any, stage: Any, k_tile: Any, step: int) -> None:
        tile.a.issue(sources[0], stage, k_tile, step)
        for b, distance in tile.bs:
            b.issue(sources[1] + distance, stage, k_tile, step)

    def store(self, tile: _Tile, stage: Any, step: int) -> None:
        tile.a.store(stage, step)
        for b, _ in tile.bs:
            b.store(stage, step)

    def advance(self, tile: _Tile, sources: Any) -> Any:
        return sources[0] + tile.a.stride, sources[1] + tile.bs[0][0].stride

    def read(self, tile: _Tile, stage: Any, step: int) -> None:
        startA, startB = tile.start_a + stage, tile.start_b + stage
        for i in range(self.warp_m // ROWS):
            self.stageA.read_fragment(tile.fragments_a[None, i, step % 2], startA, i, step)
        for f in range(self.num_b):
            for j in range(self.warp_n // ROWS):
                words = tile.fragments_b[None, f * (self.warp_n // ROWS) + j, step % 2]
                self.stageB.read_fragment(words, startB + f * self.stageB.bytes, j, step)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Add the products of one step, in serpentine order: successive products share an operand."""
        del stage
        rA, rB, rC = tile.fragments_a[None, None, step % 2], tile.fragments_b[None, None, step % 2], tile.accumulators
        for i in cutlass.range_constexpr(self.warp_m // ROWS):
            self.stageA.finish_fragment(rA[None, i])
        for j in cutlass.range_constexpr(cute.size(rB, mode=[1])):
            self.stageB.finish_fragment(rB[None, j])
        count = cutlass.const_expr(cute.size(rC, mode=[2]))
        for half in cutlass.range_constexpr(self.halves):
            for i in cutlass.range_constexpr(cute.size(rC, mode=[1])):
                for place in cutlass.range(count, unroll_full=True):
                    j = place if i % 2 == 0 else count - 1 - place
                    a = tuple(rA[word, i] for word in range(4) if self.halves == 1 or word // 2 == half)
                    b = tuple(rB[j % 2 * 2 + word, j // 2] for word in range(2) if self.halves == 1 or word == half)
                    mma_sync(self.mma, rC[None, i, j], a, b)
