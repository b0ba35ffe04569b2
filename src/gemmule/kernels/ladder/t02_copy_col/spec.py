"""The copy by columns, the lower bound: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.block_transpose import SHAPES, BlockConfig, block_spec

SPEC = block_spec(
    package=__package__,
    summary="a copy, no transpose: neighbouring threads read and write along the columns",
    configs=tuple(BlockConfig(*shape) for shape in SHAPES),
    x="j",
    copies=True,
)
