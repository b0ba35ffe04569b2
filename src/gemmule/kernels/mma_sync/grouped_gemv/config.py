"""Tiles of matrix-vector products whose matrices stay out of shared memory."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

#: Columns of D that are the rows of an mma.sync, and bytes of a line that a warp loads at once.
MMA_COLUMNS, LINE_BYTES = 16, 128
#: Most 16-byte pieces that a thread has in flight, and threads of a CTA.
_MOST_PIECES, _MOST_THREADS = 16, 1024


@dataclass(frozen=True)
class GemvConfig(Config):
    """Columns of D that a CTA computes, and the warps that split K.

    Attributes
    ----------
    tile_n : int
        Columns, a multiple of 16; of a gated epilogue half of them are of each B.
    warps : int
        Warps, a power of two. Each takes every `warps`-th 128 bytes of the lines of the tile.
    unroll : int
        Pieces of 128 bytes of each line that a warp has in flight.
    """

    tile_n: int = 16
    warps: int = 8
    unroll: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_n % MMA_COLUMNS:
            raise ArgumentError(f"config {self}: tile_n must be a multiple of {MMA_COLUMNS}")
        if self.warps & (self.warps - 1) or self.threads > _MOST_THREADS or self.threads < self.tile_n:
            raise ArgumentError(
                f"config {self}: warps must be a power of two, with tile_n to {_MOST_THREADS} threads in all"
            )
        if self.pieces > _MOST_PIECES:
            raise ArgumentError(f"config {self}: a thread has {self.pieces} pieces in flight, of {_MOST_PIECES}")

    @property
    def tile_elements(self) -> int:
        return self.tile_n

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def pieces(self) -> int:
        """16-byte pieces of weights that a thread has in flight: two of each 128 bytes of two lines of a fragment."""
        return 4 * self.unroll * self.tile_n // MMA_COLUMNS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: a partial sum of each column for each warp."""
        return 4 * self.warps * self.tile_n
