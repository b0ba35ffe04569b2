"""Configs of the study's transposes: blocks of threads over a matrix."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

_MAX_THREADS = 1024
#: Elements of a thread of an unrolled rung.
UNROLL = 4
#: Elements of a vector: 16 bytes of 4-byte elements; vectors of a source's row, and rows, that a warp reads at once.
VECTOR, LANES_I, LANES_J = 4, 8, 4


@dataclass(frozen=True)
class BlockConfig(Config):
    """Threads of a CTA."""

    #: block_x, block_y: Threads along x, the direction of consecutive threads, and along y.
    block_x: int = 32
    block_y: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_x * self.block_y > _MAX_THREADS:
            raise ArgumentError(f"config {self}: a block has up to {_MAX_THREADS} threads")

    @property
    def covers(self) -> tuple[int, int]:
        """Elements that a CTA moves along x and along y."""
        return self.block_x, self.block_y

    @property
    def tile_elements(self) -> int:
        return self.covers[0] * self.covers[1]

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory of a CTA."""
        del itemsize
        return 0


@dataclass(frozen=True)
class UnrolledConfig(BlockConfig):
    """Threads of a CTA; each moves 4 elements with a stride of block_x."""

    @property
    def covers(self) -> tuple[int, int]:
        return UNROLL * self.block_x, self.block_y


@dataclass(frozen=True)
class TileConfig(BlockConfig):
    """Threads of a CTA, which moves a square of block_x elements; block_y divides block_x.

    State: `padding`, elements between two rows of the square in shared memory.
    """

    block_y: int = 8

    padding: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_x % self.block_y:
            raise ArgumentError(f"config {self}: block_y must divide block_x")

    @property
    def covers(self) -> tuple[int, int]:
        return self.block_x, self.block_x

    def shared_bytes(self, itemsize: int) -> int:
        return self.block_x * (self.block_x + self.padding) * itemsize


@dataclass(frozen=True)
class PaddedTileConfig(TileConfig):
    """As `TileConfig`, with an element of padding."""

    padding: ClassVar[int] = 1


@dataclass(frozen=True)
class VectorConfig(BlockConfig):
    """Threads of a CTA, and the square that it moves."""

    block_x: int = 256
    block_y: int = 1
    side: int = 64  #: Elements of the square's side: 32 or more, a power of 2.

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
