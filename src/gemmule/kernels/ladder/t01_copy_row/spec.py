"""The copy by rows, the upper bound: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.block_transpose import SHAPES, BlockConfig, block_spec

SPEC = block_spec(
    package=__package__,
    summary="a copy, no transpose: neighbouring threads read and write along the rows",
    configs=tuple(BlockConfig(*shape) for shape in SHAPES),
    x="i",
    copies=True,
)
