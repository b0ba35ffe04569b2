"""Rung 4: the naive transpose that reads by columns.

Idea
    The other way round: read down a column of the source, write along the target's rows.
Change from the rung before
    The threads' x is the target's row.
Data movement
    A warp's write fills its sectors, its read touches 32 sectors for 32 elements. L1 keeps those for the warps of the
    same block that want their other elements: with 8 of them along y, a sector of 4-byte elements is used up.
Limits
    Requests: 32 sectors for each read, though most are found in L1.
Sources
    J. Cheng, M. Grossman, T. McKercher, "Professional CUDA C Programming", chapter 4.
"""

from __future__ import annotations

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.ladder.block_transpose import BlockConfig
from gemmule.kernels.parts.tensors import major_tensor


class NaiveCol:
    """D[i, j] = S[i, j] for S with neighbours along i, D along j, by threads that are neighbours along j."""

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
    return Buildable(NaiveCol(config), (major_tensor(element, 0), major_tensor(element, 1)))
