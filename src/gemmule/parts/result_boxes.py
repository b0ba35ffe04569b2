"""The end of a tile that wgmma computed: a warpgroup's sums go through shared memory in boxes of 64 x 64, by TMA."""

from __future__ import annotations

import dataclasses

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from gemmule.core.copied_tiles import BOX_COLS, BOX_ROWS, SLICE_BYTES
from gemmule.core.hopper_rungs import WARPGROUP

from .boxes import write_rows

_BOX_BYTES = BOX_ROWS * SLICE_BYTES


@dataclasses.dataclass(frozen=True)
class ResultBoxes:
    """How a warpgroup's sums are written.

    Attributes
    ----------
    blocks, boxes : int
        Blocks of 64 rows that it has of a tile, and boxes of 64 columns of a block.
    apart : int
        Blocks from one of its blocks to the next.
    held : int
        Boxes that it has in shared memory.
    reads_c : bool
        Whether there is a C.
    """

    blocks: int
    boxes: int
    apart: int
    held: int
    reads_c: bool

    @property
    def buffers(self) -> int:
        """Boxes in shared memory that take turns, from tile to tile too."""
        return self.held if self.blocks * self.boxes % self.held == 0 else 1

    @cute.jit
    def write(self, tma_c, mC, tma_d, mD, sD, arrived, brought, sums, row, col, mine, alpha, beta):
        """Write D = alpha * sums + beta * C box by box; return the phase of the arrival of C's next boxes.

        Parameters
        ----------
        tma_c, mC, tma_d, mD
            How the copy engine reads C, (M, N), and writes D.
        sD : Tensor
            Boxes of all warpgroups in shared memory.
        arrived : Pointer
            A barrier for each of them, for C.
        brought : Int32
            The phase of C's arrival.
        sums : Tensor
            This thread's sums, as wgmma leaves them.
        row, col : int
            The first box of this warpgroup, in boxes.
        mine : int
            This warpgroup's number among those that multiply. Named barriers from 1 on belong to them.
        """
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        flat = cute.make_tensor(sums.iterator, cute.make_layout(cute.size(sums)))
        gC, gD = (cute.local_tile(mX, (BOX_ROWS, BOX_COLS), (None, None)) for mX in (mC, mD))
        sC_part, gC_part = _parts(tma_c, sD, gC)
        sD_part, gD_part = _parts(tma_d, sD, gD)
        for n in cutlass.range_constexpr(self.blocks * self.boxes):
            block, box = n // self.boxes, n % self.boxes
            place = (row + block * self.apart, col + box)
            buffer = mine * self.held + n % self.buffers
            if warp == 0:
                cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                if cutlass.const_expr(self.reads_c):
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(arrived + buffer, _BOX_BYTES)
                    cute.copy(tma_c, gC_part[None, *place], sC_part[None, buffer], tma_bar_ptr=arrived + buffer)
            cute.arch.barrier(barrier_id=1 + mine, number_of_threads=WARPGROUP)
            if cutlass.const_expr(self.reads_c):
                cute.arch.mbarrier_wait(arrived + buffer, brought)
                if cutlass.const_expr(n % self.buffers == self.buffers - 1):
                    brought = brought ^ 1
            address, first = sD.iterator.toint() + buffer * _BOX_BYTES, (block * self.boxes + box) * BOX_COLS // 2
            write_rows(address, warp * 16, BOX_COLS, flat, first, sD.element_type, self.reads_c, alpha, beta)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=1 + mine, number_of_threads=WARPGROUP)
            if warp == 0:
                cute.copy(tma_d, sD_part[None, buffer], gD_part[None, *place])
                cute.arch.cp_async_bulk_commit_group()
        return brought

    @cute.jit
    def end(self):
        """Wait until the copy engine has read the last boxes; then shared memory may end."""
        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4 == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def _parts(tma, sX: cute.Tensor, gX: cute.Tensor):
    """Return boxes in shared memory, and those of the matrix, as the copy engine takes them."""
    return cpasync.tma_partition(tma, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2))
