"""Mainloop of the float64 GEMM: cp.async into swizzled stages, fragments of 16 rows of A, mma.sync."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float64, Int32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.cp_async_mainloop import WarpTileMainloop
from gemmule.kernels.parts.pdl import wait_for_predecessor
from gemmule.kernels.parts.stage_copies import MaskedCopies, MaskedOperand, OperandCopies

from .config import DmmaConfig
from .stage import DEPTH, Float64Stage
from .warp_products import LaneRegisters, WarpProducts


@dataclass(frozen=True)
class _Tile(LaneRegisters):
    """A tile's operands, and a lane's registers."""

    #: a, b: Copies of A and of B.
    a: OperandCopies
    b: OperandCopies
    #: start_a, start_b: Int32. This lane's first elements in the first stage.
    start_a: Any
    start_b: Any


@dataclass(frozen=True)
class _Lane(LaneRegisters):
    """Registers of a lane for all tiles of its CTA."""

    memory: Any  #: Pointer. The stages.
    corner: Any  #: tuple of Int32. First row and column of its warp's part of a tile.

    @property
    def stages(self) -> Any:
        """Int32. Address of the stages."""
        return self.memory.toint()


class Float64Mainloop(WarpTileMainloop, WarpProducts):
    """The loop over K; a step is the product of 16 rows of A with all columns of B, for 8 or 16 k.

    Parameters
    ----------
    config : DmmaConfig
        Tiles and stages.
    types : dict
        The signature.
    chained : bool
        As of `MaskedCopies`: fewer registers.
    """

    copies_first = True
    #: Real elements of K for each of an operand.
    parts = 1
    stage_type: type[Float64Stage] = Float64Stage

    def __init__(self, config: DmmaConfig, types: dict[str, str], *, chained: bool = False) -> None:
        self.threads, self.cluster_k = config.threads, config.cluster_k
        whole = types["tiles"] == "whole"
        stages = (
            self.stage_type(config.tile_m, config.tile_k, types["a_major"] == "k"),
            self.stage_type(
                config.tile_n, config.tile_k, types["b_major"] == "k", permuted=int(types["d_vector"]) == 1
            ),
        )
        self.set_products(config, stages)
        self.stage_bytes = self.stageA.bytes + self.stageB.bytes
        steps = self.parts * self.tile_k // (DEPTH * self.words) * self.blocks
        # The last step waits for an older k-tile.
        super().__init__(config.stages, self.stage_bytes, steps, max(steps - 1, 1))
        self.copyA, self.copyB = (
            MaskedCopies(stage, int(types[size]), self.threads, self.copy_steps, whole, chained)
            for stage, size in ((self.stageA, "a_copies"), (self.stageB, "b_copies"))
        )

    @cute.jit
    def multiply_tile(self, gA: cute.Tensor, gB: cute.Tensor, m0, n0, alpha, part):
        """Return the accumulators of a warp tile, or of this CTA's part of K, and the stages' address.

        `part` is which part of K that is, and how many there are. Where alpha is 0 the accumulators are zeros, and
        nothing is read.
        """
        own = self.begin()
        own.accumulators.fill(Float64(0))
        wait_for_predecessor()
        places = self.places(own, (gA, gB), (m0, n0))
        depth = gA.shape[1] if alpha != 0 else 0
        k_tiles, first = cute.ceil_div(depth, self.tile_k), None
        strides = self.strides(gA, gB)
        index, parts = part
        if cutlass.const_expr(not isinstance(parts, int) or parts > 1):
            # CTAs of a cluster take consecutive parts of K.
            first, k_tiles = k_tiles * index // parts, k_tiles * (index + 1) // parts
            k_tiles = k_tiles - first
        self.multiply_k_tiles(own, (gA, gB), (m0, n0), places, strides, (first, k_tiles))
        return own.accumulators, own.stages

    @cute.jit
    def begin(self):
        """Return a lane's registers and its warp's corner, and the address of the stages."""
        smem = SmemAllocator().allocate(self.stages * self.stage_bytes, 1024)
        corner = self.corner()
        return _Lane(*self.lane_registers(), smem, corner)

    @cute.jit
    def places(self, own, operands, origin):
        """Return the addresses of a lane's first copies, in memory and in the stages, and of its first fragments."""
        (gA, gB), (m0, n0), (row, col) = operands, origin, own.corner
        sources = self.copyA.source(gA, m0), self.copyB.source(gB, n0)
        stagesA = own.stages
        stagesB = stagesA + self.stageA.bytes
        targets = stagesA + self.copyA.target(), stagesB + self.copyB.target()
        return sources, targets, (stagesA + self.stageA.place(row), stagesB + self.stageB.place(col))

    def operand(self, copies: MaskedCopies, gX: Any, row0: Any, first: Any, target: Any, stride: Any) -> OperandCopies:
        """Return the copies of an operand from its `first` k-tile on."""
        if copies.whole:
            return OperandCopies(copies, gX, row0, Int32(0), target, stride)
        return MaskedOperand.of(copies, gX, row0, first, target, stride)

    def strides(self, gA: Any, gB: Any) -> tuple[Any, Any]:
        """Return the bytes from one k-tile to the next of A and of B."""
        return self.copyA.k_tile_stride(gA), self.copyB.k_tile_stride(gB)

    @cute.jit
    def multiply_k_tiles(self, own, operands, origin, places, strides, k_range):
        """Add the products of k-tiles to the accumulators: of the first one, None is 0, and how many."""
        tile, sources = self.tile(own, operands, origin, places, strides, k_range[0])
        self.accumulate(tile, sources, k_range[1])

    @cute.jit
    def tile(self, own, operands, origin, places, strides, first):
        """Return a tile, and the addresses of the first copies of its `first` k-tile; None is 0."""
        (gA, gB), (m0, n0), (sources, targets, starts) = operands, origin, places
        if cutlass.const_expr(first is not None):
            sources = sources[0] + first * strides[0], sources[1] + first * strides[1]
        a = self.operand(self.copyA, gA, m0, first, targets[0], strides[0])
        b = self.operand(self.copyB, gB, n0, first, targets[1], strides[1])
        return _Tile(own.fragments_a, own.next_a, own.fragments_b, own.accumulators, a, b, *starts), sources

    def issue(self, tile: _Tile, sources: Any, stage: Any, k_tile: Any, step: int) -> None:
        for operand, source in zip((tile.a, tile.b), sources, strict=True):
            operand.issue(source, stage, k_tile, step)

    def advance(self, tile: _Tile, sources: Any) -> Any:
        return sources[0] + tile.a.stride, sources[1] + tile.b.stride

    def read_first(self, tile: _Tile) -> None:
        self.read_rows(tile.fragments_a, tile.start_a, 0)
        for j in range(self.columns):
            self.read_column(tile.fragments_b, tile.start_b, j, 0)

    def read(self, tile: _Tile, stage: Any, step: int) -> None:
        self.read_rows(tile.next_a, tile.start_a + stage, step)

    @cute.jit
    def multiply(self, tile, stage, step: cutlass.Constexpr[int]):
        """Multiply 16 rows with all columns; after the last rows, fragments of B are replaced by the next k's."""
        i, after = cutlass.const_expr((step % self.blocks, (step + 1) % self.steps // self.blocks))
        for j in cutlass.range_constexpr(self.columns):
            self.multiply_column(tile.fragments_a, tile.fragments_b[None, j], tile.accumulators[None, i, j])
            if cutlass.const_expr(i == self.blocks - 1):
                self.read_column(tile.fragments_b, tile.start_b + stage, j, after)
        tile.fragments_a.store(tile.next_a.load())
