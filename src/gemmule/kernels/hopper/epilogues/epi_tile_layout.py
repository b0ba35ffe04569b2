"""Epilogue tiles: the tiles in which a warpgroup's part of a CTA tile passes through shared memory."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.mainloops.operands import TmaTensor, partitioned
from gemmule.kernels.hopper.tile_config import CONSUMERS, WRITTEN_BARRIERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP

#: Bits of the chunks that a swizzle permutes.
_CHUNK_BITS = 128
#: The first of the named barriers by which the warps of the warpgroups say that a batch is written.
_WRITTEN_BARRIER_ID = 8


@dataclass(frozen=True)
class EpiTileLayout:
    """The epilogue tiles of a warpgroup: how many, and where they are in D and in shared memory.

    Raises `ArgumentError` where the stages do not divide the epilogue tiles of a CTA tile: the first one of the next
    CTA tile, in stage 0, would overwrite one that a TMA store may still read.
    """

    element: Any  #: Type. Element type of D.
    shape: tuple[int, int]  #: Rows and columns of an epilogue tile.
    #: mma_tiles_m, epi_tiles_n: wgmma tiles of 64 rows that the warpgroup has of a CTA tile, and epilogue tiles of
    #: each, along N.
    mma_tiles_m: int
    epi_tiles_n: int
    mma_stride_m: int  #: wgmma tiles of the CTA tile from one of this warpgroup's to its next.
    epi_stages: int  #: Stages of the warpgroup in shared memory, used one after another.
    #: Batches of epilogue tiles that are written, then stored at once; by default each tile is one.
    num_batches: int | None = None
    tiles_per_stage: int = 1  #: Epilogue tiles of a stage: 2 where each is written a second time, transposed.
    column_major: bool = False  #: Whether D is column-major.
    reads_c: bool = False  #: Whether there is a C.
    #: Whether C is loaded ahead, by `CTiles`: any number of stages is a ring then.
    loads_c_ahead: bool = False
    loads_c_during: bool = False  #: Whether it is loaded during the mainloop, where K is long enough.
    warpgroups: int = CONSUMERS  #: Consumer warpgroups of the CTA.

    def __post_init__(self) -> None:
        ring = self.loads_c_ahead or self.holds_all
        if not self.num_buffers or (len(self.batches) % self.num_buffers and not ring):
            raise ArgumentError(
                f"{self.epi_stages} epilogue stages must divide the {self.num_epi_tiles} epilogue tiles of a "
                "warpgroup in a CTA tile; change the tile or the stages"
            )

    @property
    def num_epi_tiles(self) -> int:
        """Epilogue tiles that the warpgroup has of a CTA tile."""
        return self.mma_tiles_m * self.epi_tiles_n

    @property
    def batches(self) -> tuple[range, ...]:
        """The epilogue tiles of each batch, of which none has two more than another."""
        count = self.num_batches or self.num_epi_tiles
        ends = [batch * self.num_epi_tiles // count for batch in range(count + 1)]
        return tuple(map(range, ends, ends[1:]))

    @property
    def batch_stages(self) -> int:
        """Stages of a batch."""
        return max(map(len, self.batches))

    @property
    def num_buffers(self) -> int:
        """Batches that the stages hold."""
        return self.epi_stages // self.batch_stages

    @property
    def holds_all(self) -> bool:
        """Whether each epilogue tile of a CTA tile has a stage of its own."""
        return self.epi_stages == self.num_epi_tiles

    @property
    def nbytes(self) -> int:
        """Bytes of an epilogue tile in shared memory."""
        bits: int = self.shape[0] * self.shape[1] * self.element.width
        return bits // 8

    @property
    def smem_tiles(self) -> int:
        """Epilogue tiles of all warpgroups in shared memory."""
        return self.warpgroups * self.epi_stages * self.tiles_per_stage

    def coord(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return where epilogue tile `n` is, in such tiles: those of the same columns first, then the next columns."""
        mma_tile, epi_tile_n = n % self.mma_tiles_m, n // self.mma_tiles_m
        return row + mma_tile * self.mma_stride_m, col + epi_tile_n

    def smem_layout(self, *, transposed: bool = False) -> Any:
        """Return the shared-memory layout of all warpgroups' epilogue tiles, of D or of its transpose.

        Rows of an odd number of chunks need no swizzle: of 8 rows no two begin in the same banks.
        """
        rows, cols = self.shape
        chunks = cols * self.element.width // _CHUNK_BITS
        if chunks > 1 and chunks % 2 and not self.column_major:
            layout = cute.make_layout((rows, cols, self.smem_tiles), stride=(cols, 1, rows * cols))
            return cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, layout)
        order = LayoutEnum.COL_MAJOR if self.column_major != transposed else LayoutEnum.ROW_MAJOR
        return hopper_helpers.make_smem_layout_epi(self.element, order, self.shape, self.smem_tiles)

    def allocate(self, smem: Any) -> Any:
        """Allocate all warpgroups' epilogue tiles."""
        layout = self.smem_layout()
        return smem.allocate_tensor(self.element, layout.outer, 1024, swizzle=layout.inner)

    def barriers(self, smem: Any) -> Any:
        """Allocate the full barriers of C's epilogue tiles."""
        return smem.allocate_array(cutlass.Int64, self.smem_tiles)

    @cute.jit
    def init(self, c_full):
        """Initialise the full barriers of C's epilogue tiles, by one thread."""
        for b in cutlass.range_constexpr(self.smem_tiles):
            cute.arch.mbarrier_init(c_full + b, 1)

    def tma_load(self, mC: Any) -> TmaTensor:
        """Return the TMA load of C's epilogue tiles."""
        return self._tma(cpasync.CopyBulkTensorTileG2SOp(), mC, self.smem_layout())

    def tma_store(self, mD: Any, *, transposed: bool = False) -> TmaTensor:
        """Return the TMA store of the epilogue tiles of D, or of its transpose."""
        return self._tma(cpasync.CopyBulkTensorTileS2GOp(), mD, self.smem_layout(transposed=transposed))

    def _tma(self, op: Any, matrix: Any, layout: Any) -> TmaTensor:
        tile = cute.make_composed_layout(layout.inner, 0, cute.select(layout.outer, [0, 1]))
        return TmaTensor(*cpasync.make_tiled_tma_atom(op, matrix, tile, self.shape))

    def partitioned(self, matrix: TmaTensor, smem: Any, batch: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return epilogue tiles in shared memory, and those of a matrix of the batch, partitioned for its TMA atom."""
        gmem_epi_tiles = cute.local_tile(matrix.tensor[(None, None, *batch)], self.shape, (None, None))
        return partitioned(matrix.atom, smem, gmem_epi_tiles)

    @property
    def written_barriers(self) -> int:
        """Named barriers of a warpgroup by which its warps say that a batch is written; 0 where all wait for all.

        With C, or where shared memory holds all, no batch but the next tile's waits for a store of this one, so that a
        warp may be batches ahead of the first: each batch has its own.
        """
        if not self.loads_c_ahead and not self.holds_all:
            return 1
        return len(self.batches) if len(self.batches) * self.warpgroups <= WRITTEN_BARRIERS else 0

    @cute.jit
    def await_written(self, batch: cutlass.Constexpr[int], ctx):
        """Wait until all warps have written a batch: in the first warp, which stores it; the others go on."""
        if cutlass.const_expr(self.written_barriers == 0):
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
        else:
            number = cutlass.const_expr(_WRITTEN_BARRIER_ID + self.warpgroups * (batch % self.written_barriers))
            if warp_in_warpgroup() == 0:
                cute.arch.barrier(barrier_id=number + ctx.warpgroup_idx, number_of_threads=WARPGROUP)
            else:
                cute.arch.barrier_arrive(barrier_id=number + ctx.warpgroup_idx, number_of_threads=WARPGROUP)

    @cute.jit
    def end(self):
        """Wait until the TMA stores have read the last epilogue tiles: the CTA's shared memory may go then."""
        if warp_in_warpgroup() == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def warp_in_warpgroup():
    """Return this warp's index in its warpgroup."""
    return cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
