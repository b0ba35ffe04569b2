"""The end of a tile with an epilogue: box by box through shared memory, what goes into the next box on its way.

A warpgroup's sums become values in registers, which leave by the copy engine; C comes by it, into the same boxes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from .box_layout import BoxLayout
from .fragment_epilogue import FragmentEpilogue

_WARPGROUP = 128
#: Sums of a thread beside which there are registers for more.
_FEW_SUMS = 128


@dataclasses.dataclass(frozen=True)
class FinishedBoxes(BoxLayout):
    """How a warpgroup finishes its part of a tile.

    Attributes
    ----------
    epilogue : FragmentEpilogue
        What is computed.
    factors : int
        2 where the sums of each block are followed by those of a second factor, else 1.
    """

    epilogue: FragmentEpilogue
    factors: int = 1

    @property
    def block_sums(self) -> int:
        """Sums of a thread in the boxes of a block."""
        return self.boxes * self.box_n // 2

    @property
    def count(self) -> int:
        """Boxes of a tile."""
        return self.blocks * self.boxes

    @property
    def ahead(self) -> bool:
        """Whether C comes a box ahead: not into the buffer of the box before."""
        return self.buffers > 1

    @property
    def early(self) -> bool:
        """Whether there are registers for what goes into a box before its turn."""
        return self.blocks * self.block_sums * self.factors <= _FEW_SUMS

    def place(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return where box `n` is, in boxes: of the blocks one after the other, whose columns are the same."""
        return row + n % self.blocks * self.apart, col + n // self.blocks

    def first_sum(self, n: int) -> int:
        """Return the first of a thread's sums in box `n`."""
        return n % self.blocks * self.block_sums * self.factors + n // self.blocks * self.box_n // 2

    def inputs(self, n: int, extras: Any, mD: Any, row: Any, col: Any, batch: Any) -> Any:
        """Start to load what goes into box `n`, but for C."""
        return self.epilogue.load(extras, mD, *self.begins(n, row, col), batch, self.box_n)

    def begins(self, n: int, row: Any, col: Any) -> tuple[Any, Any]:
        """Return the first row of this warp in box `n`, and the box's first column."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        i, j = self.place(n, row, col)
        return i * self.box_m + warp * 16, j * self.box_n

    @cute.jit
    def bring(self, n: cutlass.Constexpr[int], pending: cutlass.Constexpr[int], tma_c, mC, sD, arrived, row, col, batch,
              mine):  # fmt: skip
        """Start to bring C's box `n`, when all but the last `pending` boxes have left shared memory."""
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        buffer = mine * self.buffers + n % self.buffers
        if warp == 0:
            sC_part, gC_part = self.parts(tma_c, mC, sD, batch)
            cute.arch.cp_async_bulk_wait_group(pending, read=True)
            with cute.arch.elect_one():
                box_bytes = cutlass.const_expr(self.box_bytes)
                cute.arch.mbarrier_arrive_and_expect_tx(arrived + buffer, box_bytes)
            source = gC_part[None, *self.place(n, row, col)]
            cute.copy(tma_c, source, sC_part[None, buffer], tma_bar_ptr=arrived + buffer)

    def begin(self, tma_c: Any, mC: Any, mD: Any, sD: Any, arrived: Any, extras: Any, row: Any, col: Any, batch: Any,
              mine: Any) -> Any:  # fmt: skip
        """Start what goes into the first box, before the tile is computed; return what `finish` needs of it."""
        if self.reads_c and self.ahead:
            self.bring(0, self.buffers - 1, tma_c, mC, sD, arrived, row, col, batch, mine)
        return self.inputs(0, extras, mD, row, col, batch) if self.early else None

    @cute.jit
    def finish(self, begun, tma_c, mC, tma_d, mD, sD, arrived, brought, sums, extras, row, col, batch, mine, barrier,
               alpha, beta):  # fmt: skip
        """Compute and write a tile's boxes; return the phase of C's arrival.

        Parameters
        ----------
        begun
            What `begin` returned.
        tma_c, mC, tma_d, mD
            How the copy engine reads C and writes D, (M, N, L).
        sD : Tensor
            Boxes of all warpgroups in shared memory.
        arrived : Pointer
            A barrier for each of them, for C.
        brought : Int32
            The phase of C's arrival.
        sums : Tensor
            This thread's sums, flat, as wgmma leaves them.
        extras : tuple
            What the epilogue reads; last, where it is wanted, the register of the absolute maximum.
        row, col, batch : Int32
            The warpgroup's first box, in boxes, and the matrix.
        mine, barrier : Int32
            The warpgroup's number and its named barrier.
        alpha, beta : Float32
            The factors.
        """
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4
        sD_part, gD_part = self.parts(tma_d, mD, sD, batch)
        inputs = begun
        for n in cutlass.range_constexpr(self.count):
            buffer = mine * self.buffers + n % self.buffers
            following = None
            if cutlass.const_expr(not self.early):
                inputs = self.inputs(n, extras, mD, row, col, batch)
            elif cutlass.const_expr(n + 1 < self.count):
                following = self.inputs(n + 1, extras, mD, row, col, batch)
            if cutlass.const_expr(self.reads_c):
                if cutlass.const_expr(not self.ahead):
                    self.bring(n, 0, tma_c, mC, sD, arrived, row, col, batch, mine)
                elif cutlass.const_expr(n + 1 < self.count):
                    self.bring(n + 1, self.buffers - 2, tma_c, mC, sD, arrived, row, col, batch, mine)
                # Where C has come, the box before has left.
                cute.arch.mbarrier_wait(arrived + buffer, brought)
                if cutlass.const_expr(n % self.buffers == self.buffers - 1):
                    brought = brought ^ 1
            else:
                if warp == 0:
                    cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)
                cute.arch.barrier(barrier_id=barrier, number_of_threads=_WARPGROUP)
            box_bytes = cutlass.const_expr(self.box_bytes)
            self.epilogue.write(
                inputs, extras, sD.iterator.toint() + buffer * box_bytes, warp * 16, self.box_n, sums,
                self.first_sum(n), self.out, alpha, beta, reads_c=self.reads_c, columns=self.turned,
                up=self.block_sums if self.factors > 1 else 0,
                inside=self.epilogue.inside(mD, *self.begins(n, row, col)),
            )  # fmt: skip
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=barrier, number_of_threads=_WARPGROUP)
            if warp == 0:
                cute.copy(tma_d, sD_part[None, buffer], gD_part[None, *self.place(n, row, col)])
                cute.arch.cp_async_bulk_commit_group()
            inputs = following
        return brought

    def parts(self, tma: Any, mX: Any, sD: Any, batch: Any) -> Any:
        """Return boxes in shared memory, and those of the matrix, as the copy engine takes them."""
        gX = cute.local_tile(mX[None, None, batch], (self.box_m, self.box_n), (None, None))
        return cpasync.tma_partition(
            tma, 0, cute.make_layout(1), cute.group_modes(sD, 0, 2), cute.group_modes(gX, 0, 2)
        )
