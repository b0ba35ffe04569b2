"""The transpose through padded shared memory: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.errors import ArgumentError
from gemmule.kernels.ladder.block_transpose import BlockConfig, block_spec


@dataclasses.dataclass(frozen=True)
class TileConfig(BlockConfig):
    """Threads of a CTA, which moves a square of block_x elements; block_y divides block_x."""

    block_x: int = 32
    block_y: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_x % self.block_y:
            raise ArgumentError(f"config {self}: block_y must divide block_x")

    @property
    def covers(self) -> tuple[int, int]:
        return self.block_x, self.block_x

    def shared_bytes(self, itemsize: int) -> int:
        return self.block_x * (self.block_x + 1) * itemsize


SPEC = block_spec(
    package=__package__,
    summary="reads and writes along rows, through a square tile whose rows are padded by an element",
    configs=tuple(TileConfig(*shape) for shape in ((32, 8), (32, 16), (32, 32), (64, 8), (64, 16))),
    x="i",
)
