"""Base of the study's transposes: a CTA for each block of the matrix."""

from __future__ import annotations

from typing import Any

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.tensors import major_tensor

from .transpose_rung_config import BlockConfig


class BlockKernel:
    """A kernel D[i, j] = S[i, j], S contiguous along i and D along j, whose threads along x and y are a block.

    State: `copies`, whether D is contiguous along i too; `vector`, elements that divide the leading dimensions.
    """

    copies, vector = False, 1
    kernel: Any

    def __init__(self, config: BlockConfig) -> None:
        self.block, self.covers = (config.block_x, config.block_y), config.covers

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        # The launch recipe has the grid; only the block is compiled in.
        self.kernel(mS, mD).launch(grid=(1, 1, 1), block=(*self.block, 1))

    @classmethod
    def buildable(cls, config: BlockConfig, types: dict[str, str]) -> Buildable:
        """Return the kernel for that element size, with fake arguments."""
        units = (0, 0 if cls.copies else 1)
        return Buildable(cls(config), tuple(major_tensor(types["element"], unit, vector=cls.vector) for unit in units))
