"""Rung 2: a copy by columns, the lower bound.

Idea
    The worst that a transpose could do on both sides: neighbouring threads read elements that are a whole row apart,
    and write such.
Change from the rung before
    The threads' x is the column.
Data movement
    Every access of a warp touches 32 sectors, of which it wants one element each. What of them is used again depends
    on the caches: the threads' y, which lies along the rows, uses neighbours in the same sector.
Limits
    Sectors: 32 for each access, instead of 4 for elements of 4 bytes.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4: the bounds of the study.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.ladder.block_transpose import BlockConfig
from gemmule.kernels.parts.tensors import major_tensor


class CopyCol:
    """D[i, j] = S[i, j], both with neighbours along i, by threads that are neighbours along j."""

    def __init__(self, config: BlockConfig) -> None:
        self.block = (config.block_x, config.block_y)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        blocks_x, blocks_y = cute.ceil_div(mS.shape[1], self.block[0]), cute.ceil_div(mS.shape[0], self.block[1])
        self.kernel(mS, mD).launch(grid=(blocks_x, blocks_y, 1), block=(*self.block, 1))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tx, ty, _ = cute.arch.thread_idx()
        block_x, block_y, _ = cute.arch.block_idx()
        j, i = block_x * self.block[0] + tx, block_y * self.block[1] + ty
        if i < mS.shape[0] and j < mS.shape[1]:
            mD[i, j] = mS[i, j]


def buildable(config: BlockConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    element = types["element"]
    return Buildable(CopyCol(config), (major_tensor(element, 0), major_tensor(element, 0)))
