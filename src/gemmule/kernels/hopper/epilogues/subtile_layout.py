"""Epilogue subtiles: the pieces in which a warpgroup's part of a tile passes through shared memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.kernels.hopper.mainloops.operands import TmaTensor, partitioned
from gemmule.kernels.hopper.tile_config import CONSUMERS


@dataclasses.dataclass(frozen=True)
class SubtileLayout:
    """The epilogue subtiles of a warpgroup.

    Attributes
    ----------
    out : type
        Element type of D.
    shape : tuple of int
        Rows and columns of a subtile.
    blocks, per_block : int
        Blocks of 64 rows that the warpgroup has of a tile, and subtiles of a block.
    row_block_stride : int
        Blocks of the tile from one of this warpgroup's to the next.
    buffers : int
        Subtiles of the warpgroup in shared memory, used alternately; with a fused epilogue they divide those of a tile.
    column_major : bool
        Whether D is column-major.
    reads_c : bool
        Whether there is a C.
    """

    out: Any
    shape: tuple[int, int]
    blocks: int
    per_block: int
    row_block_stride: int
    buffers: int
    column_major: bool = False
    reads_c: bool = False

    @property
    def subtile_bytes(self) -> int:
        """Bytes of a subtile in shared memory."""
        bits: int = self.shape[0] * self.shape[1] * self.out.width
        return bits // 8

    def smem_layout(self, *, transposed: bool = False) -> Any:
        """Return the shared-memory layout of all warpgroups' subtiles, of D or of its transpose."""
        order = LayoutEnum.COL_MAJOR if self.column_major != transposed else LayoutEnum.ROW_MAJOR
        return hopper_helpers.make_smem_layout_epi(self.out, order, self.shape, CONSUMERS * self.buffers)

    def allocate(self, smem: Any) -> Any:
        """Allocate all warpgroups' subtiles."""
        layout = self.smem_layout()
        return smem.allocate_tensor(self.out, layout.outer, 1024, swizzle=layout.inner)

    def barriers(self, smem: Any) -> Any:
        """Allocate the barriers of C's subtiles."""
        return smem.allocate_array(cutlass.Int64, CONSUMERS * self.buffers)

    @cute.jit
    def init(self, c_full):
        """Initialise the barriers of C's subtiles, by one thread."""
        for b in cutlass.range_constexpr(CONSUMERS * self.buffers):
            cute.arch.mbarrier_init(c_full + b, 1)

    def tma_load(self, mC: Any) -> TmaTensor:
        """Return the TMA load of C's subtiles."""
        return self._tma(cpasync.CopyBulkTensorTileG2SOp(), mC, self.smem_layout())

    def tma_store(self, mD: Any, *, transposed: bool = False) -> TmaTensor:
        """Return the TMA store of the subtiles of D, or of its transpose."""
        return self._tma(cpasync.CopyBulkTensorTileS2GOp(), mD, self.smem_layout(transposed=transposed))

    def _tma(self, op: Any, matrix: Any, layout: Any) -> TmaTensor:
        subtile = cute.slice_(layout, (None, None, 0))
        return TmaTensor(*cpasync.make_tiled_tma_atom(op, matrix, subtile, self.shape))

    def partitioned(self, matrix: TmaTensor, smem: Any, batch: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return subtiles in shared memory, and those of a matrix of the batch, partitioned for its TMA atom."""
        tiles = cute.local_tile(matrix.tensor[(None, None, *batch)], self.shape, (None, None))
        return partitioned(matrix.atom, smem, tiles)

    @cute.jit
    def warp(self):
        """Return this warp's number in its warpgroup."""
        return cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4

    @cute.jit
    def end(self):
        """Wait until the TMA stores have read the last subtiles: the CTA's shared memory may go then."""
        if self.warp() == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
