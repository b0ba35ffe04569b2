"""The naive transpose by rows: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.block_transpose import SHAPES, BlockConfig, block_spec

SPEC = block_spec(
    package=__package__,
    summary="reads along rows, writes along columns, one element a thread",
    configs=tuple(BlockConfig(*shape) for shape in SHAPES),
    x="i",
)
