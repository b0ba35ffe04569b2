"""Rung 6: the transpose by columns, 4 elements a thread.

Idea
    A thread that waits for one element could as well wait for four: all are read before the first is written.
Change from the rung before
    Reads by columns, as rung 4; the unrolling is that of rung 5.
Data movement
    As rung 4, with 4 accesses of a thread on their way at once.
Limits
    As rung 4: the number of sectors is the same.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.tensors import major_tensor

from .spec import UNROLL, UnrolledConfig


class UnrollCol:
    """D[i, j] = S[i, j] for S with neighbours along i, D along j, by threads that are neighbours along j."""

    def __init__(self, config: UnrolledConfig) -> None:
        self.block = (config.block_x, config.block_y)
        self.covers = config.covers

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        blocks_x, blocks_y = cute.ceil_div(mS.shape[1], self.covers[0]), cute.ceil_div(mS.shape[0], self.covers[1])
        self.kernel(mS, mD).launch(grid=(blocks_x, blocks_y, 1), block=(*self.block, 1))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        x, y = block_x * self.covers[0] + tx, block_y * self.covers[1] + ty
        moved = cute.make_rmem_tensor(cute.make_layout(UNROLL), mS.element_type)
        for u in cutlass.range_constexpr(UNROLL):
            j, i = x + u * self.block[0], y
            if i < mS.shape[0] and j < mS.shape[1]:
                moved[u] = mS[i, j]
        for u in cutlass.range_constexpr(UNROLL):
            j, i = x + u * self.block[0], y
            if i < mS.shape[0] and j < mS.shape[1]:
                mD[i, j] = moved[u]


def buildable(config: UnrolledConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    element = types["element"]
    return Buildable(UnrollCol(config), (major_tensor(element, 0), major_tensor(element, 1)))
