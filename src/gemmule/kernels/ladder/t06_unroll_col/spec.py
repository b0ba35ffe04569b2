"""The unrolled transpose by columns: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.block_transpose import SHAPES, BlockConfig, block_spec

#: Elements of a thread.
UNROLL = 4


@dataclasses.dataclass(frozen=True)
class UnrolledConfig(BlockConfig):
    """Threads of a CTA, each of which moves 4 elements, block_x apart."""

    @property
    def covers(self) -> tuple[int, int]:
        return UNROLL * self.block_x, self.block_y


SPEC = block_spec(
    package=__package__,
    summary="reads along columns, writes along rows, 4 elements a thread",
    configs=tuple(UnrolledConfig(*shape) for shape in SHAPES),
    x="j",
)
