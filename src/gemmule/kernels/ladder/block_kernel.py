"""Base of the study's transposes: a CTA for each block of the matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutlass import cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.tensors import major_tensor

from .transpose_rung_config import BlockConfig


class BlockKernel:
    """A kernel D[i, j] = S[i, j] with S contiguous along i, whose CTAs move `covers` elements along x and y.

    State: `x`, the index along which consecutive threads lie, ``i`` or ``j``.
    """

    x = "i"

    def __init__(self, config: BlockConfig) -> None:
        self.block, self.covers = (config.block_x, config.block_y), config.covers

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        along_x, along_y = (0, 1) if self.x == "i" else (1, 0)
        blocks_x = cute.ceil_div(mS.shape[along_x], self.covers[0])
        blocks_y = cute.ceil_div(mS.shape[along_y], self.covers[1])
        self.kernel(mS, mD).launch(grid=(blocks_x, blocks_y, 1), block=(*self.block, 1))

    kernel: Any


def buildable_of(
    kernel: type[BlockKernel], *, copies: bool = False, vector: int = 1
) -> Callable[[BlockConfig, dict[str, str]], Buildable]:
    """Return ``buildable(config, types)`` of a kernel.

    Parameters
    ----------
    kernel : type
        The kernel.
    copies : bool
        Whether D is contiguous along i too; else along j.
    vector : int
        Elements that divide the leading dimensions.
    """

    def buildable(config: BlockConfig, types: dict[str, str]) -> Buildable:
        tensors = (major_tensor(types["element"], unit, vector=vector) for unit in (0, 0 if copies else 1))
        return Buildable(kernel(config), tuple(tensors))

    return buildable
