"""The transpose by vectors, through a swizzled tile: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.errors import ArgumentError
from gemmule.kernels.ladder.block_transpose import BlockConfig, block_spec

#: Elements of a vector: 16 bytes of 4-byte elements.
VECTOR = 4
#: Vectors of a source's row, and rows, that a warp reads at once.
LANES_I, LANES_J = 8, 4


@dataclasses.dataclass(frozen=True)
class VectorConfig(BlockConfig):
    """Threads of a CTA, and the square that it moves.

    Attributes
    ----------
    side : int
        Elements of the square's side: 32 or more, a power of 2.
    """

    block_x: int = 256
    block_y: int = 1
    side: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side & (self.side - 1) or self.side < LANES_I * VECTOR or self.block_y != 1:
            raise ArgumentError(f"config {self}: side must be a power of 2 from 32, and block_y 1")
        if self.block_x % 32 or self.side * self.side // VECTOR % self.block_x:
            raise ArgumentError(f"config {self}: block_x must be whole warps and divide the square's vectors")

    @property
    def covers(self) -> tuple[int, int]:
        return self.side, self.side

    def shared_bytes(self, itemsize: int) -> int:
        return self.side * self.side * itemsize


SPEC = block_spec(
    package=__package__,
    summary="4 bytes, rows of whole 16 bytes: vectors on both sides, through a square swizzled by an XOR",
    configs=(VectorConfig(), VectorConfig(128), VectorConfig(64, side=32)),
    x="i",
    wide=(4,),
)
