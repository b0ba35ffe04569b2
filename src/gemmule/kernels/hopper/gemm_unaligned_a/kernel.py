"""GEMM with an A whose lines begin anywhere: `hopper_gemm_unaligned`, with A as it lies.

Idea
    Of lines whose numbers are equal modulo 8 TMA loads boxes from the multiple of 16 bytes before the first one on:
    their shift within 16 bytes is the same. Consumers read A's fragments of wgmma from shared memory from that shift
    on: K-major as words, or two joined, MN-major as halves.
Compared with hopper_gemm_unaligned
    A is in registers. K-major, its tile's rows are in the order of their classes, and each warp writes every 8th row of
    D; MN-major, the k of a k-tile are, also B's. With swap_ab B is that operand, and D's rows are put together from
    columns in shared memory. The first k-tiles of A are loaded before the wait for the predecessor, which writes B.
    Where a cluster splits K, a CTA has one tile, and receives partial sums where the stages were.
Data movement
    As of `hopper_gemm_unaligned`; of an MN-major A 272 bytes of each line instead of 256.
Limits
    Reading fragments: lanes read 128 rows of a k-tile in 128 to 256 cycles, besides what wgmma reads and TMA writes.
Sources
    NVIDIA, PTX ISA: wgmma with A in registers, cp.async.bulk.tensor.
"""

from __future__ import annotations

import functools
from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.hopper.epilogues.cluster_reduction import ReduceBuffer
from gemmule.kernels.hopper.epilogues.transposed_rows import TransposedRows, transposed
from gemmule.kernels.hopper.gemm_line_classes.config import CLASSES
from gemmule.kernels.hopper.gemm_unaligned.kernel import HopperGemmUnaligned
from gemmule.kernels.hopper.mainloops.line_classes import (
    ClassOperands,
    KMajorClassMainloop,
    MnMajorClassMainloop,
    class_instruction,
    class_of,
    first_row,
)
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M
from gemmule.kernels.parts.schedulers.persistent import KTileRange
from gemmule.kernels.parts.tensors import cute_type, major_tensor

from .config import UnalignedAConfig

#: Named barriers of the warpgroups that share a tile, behind those of `HopperGemmUnaligned`.
_ROWS_BARRIER_ID = 5


class HopperGemmUnalignedA(HopperGemmUnaligned):
    """As `HopperGemmUnaligned`, for A as the classes of its rows."""

    loads_ahead = True

    def __init__(self, config: UnalignedAConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        given = self.operands
        self.operands = self.class_operands = ClassOperands(
            given.cta_tile_mnk, given.elements, given.k_major, given.num_stages,
            multicast_size_a=given.multicast_size_a, multicast_size_b=given.multicast_size_b,
        )  # fmt: skip
        self.transposed_rows: Any = None
        if config.swap_ab:
            self.transposed_rows = TransposedRows(
                self.element, self.tile_m, self.columns, self.warpgroups_per_tile, _ROWS_BARRIER_ID, self.reads_c
            )
            self.staged_words = self.transposed_rows.words * CONSUMERS // self.warpgroups_per_tile
        mainloop = KMajorClassMainloop if given.k_major[0] else MnMajorClassMainloop
        self.mainloop = mainloop(config.stages, self.operands.stage_bytes, pingpong=self.pingpong)
        self.one_tile = config.cluster_k > 1
        # The part of K before this CTA's has what is carried to its first k-tile.
        self.starts_carried = self.mainloop.starts_carried = self.one_tile and given.k_major[0]

    def reduce_buffer(self, smem: Any, smem_ab: Any, barriers: Any) -> Any:
        """Return where partial sums are received: in the stages."""
        del smem
        return ReduceBuffer(self.class_operands.begin(smem_ab), *barriers) if self.one_tile else None

    def k_range(self, operands: Any) -> Any:
        """Return the k-tiles that this CTA loads: of a K-major A also the one before its part, for what is carried."""
        start, count = super().k_range(operands)
        return KTileRange(start - 1, count + 1) if self.starts_carried else KTileRange(start, count)

    def make_tiled_mma(self) -> cute.TiledMma:
        """Return the instruction, for the warpgroups that share a tile."""
        element, b_major_k = self.operands.elements[0], self.operands.k_major[1]
        return class_instruction(element, b_major_k, self.warpgroups_per_tile, (MMA_M, self.tile_n))

    @cute.jit
    def write(self, matrices, origin, rows, accumulators, warpgroup_idx, scale):
        """Write a tile; with swap_ab of the transpose of D, whose rows are D's columns."""
        if cutlass.const_expr(self.transposed_rows is None):
            super().write(matrices, origin, rows, accumulators, warpgroup_idx, scale)
        else:
            if cutlass.const_expr(self.pingpong):
                rows = rows + warpgroup_idx * self.transposed_rows.words
            column = functools.partial(self.column, 0 if cutlass.const_expr(self.pingpong) else warpgroup_idx)
            m0, n0 = origin
            given = tuple(transposed(matrix) for matrix in matrices)
            self.transposed_rows.write(given, (n0, m0), rows, accumulators, column, scale)

    def column(self, warpgroup_idx: Any, mma_tile: int, half: int) -> Any:
        """Return the column of D, in the tile, that this lane has of half of a wgmma tile of its transpose."""
        row, beyond = first_row(mma_tile, warpgroup_idx, self.warpgroups_per_tile), 8 * half + cute.arch.lane_idx() // 4
        if not self.operands.k_major[0]:
            return row + beyond
        number = class_of(row, self.tile_m)
        return number + CLASSES * (row - number * (self.tile_m // CLASSES) + beyond)

    def slabs(self, matrices: Any, m0: Any, row: Any) -> tuple[Any, Any]:
        """Return the rows of a warp's class, and the number of its first among them."""
        if not self.operands.k_major[0]:
            return super().slabs(matrices, m0, row)
        number = class_of(row, self.tile_m)
        first = m0 + number
        within = row - number * (self.tile_m // CLASSES)
        return tuple(rows_of_class(matrix, first) for matrix in matrices), within


def rows_of_class(matrix: cute.Tensor, first: Any) -> cute.Tensor:
    """Return every 8th row of a matrix from one on."""
    rows, cols = matrix.shape
    ahead, step = matrix.stride
    start = matrix.iterator + cute.crd2idx((first, 0), matrix.layout)
    count = cutlass.max((rows - first + CLASSES - 1) // CLASSES, 0)
    return cute.make_tensor(start, cute.make_layout((count, cols), stride=(ahead * CLASSES, step)))


def buildable(config: UnalignedAConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with fake arguments."""
    name = types["element"]
    vector = 128 // cute_type(name).width
    classes = tuple(major_tensor(name, 1, batch=1, vector=vector) for _ in range(CLASSES))
    b = major_tensor(name, 1 if types["b_major"] == "k" else 0, batch=1, vector=vector)
    c, d = (major_tensor(name, 0 if config.swap_ab else 1, batch=1) for _ in range(2))
    scale = (cutlass.Float32(1), cutlass.Float32(0))
    return Buildable(HopperGemmUnalignedA(config, types), ((classes, b, c, d), Int32(1), scale))
