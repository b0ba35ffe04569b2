"""Tiles of warps that compute small matrices of a batch."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

#: Rows and columns of an mma.sync, and its K of 16-bit elements.
MMA_ROWS, MMA_COLUMNS, MMA_K = 16, 8, 16
#: Most threads of a CTA; most 32-bit registers of a thread for accumulators and loaded elements.
_MOST_THREADS, _MOST_REGISTERS = 1024, 96


@dataclass(frozen=True)
class BatchedMmaConfig(Config):
    """Tile of a matrix of the result that a warp computes.

    Attributes
    ----------
    tile_m : int
        Rows, a power of two from 16 on.
    tile_n : int
        Columns, a power of two from 8 on.
    unroll : int
        Steps of 16 along K that are loaded together.
    warps : int
        Warps of a CTA, of consecutive tiles and matrices.
    """

    tile_m: int = 16
    tile_n: int = 16
    unroll: int = 1
    warps: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_m < MMA_ROWS or self.tile_n < MMA_COLUMNS:
            raise ArgumentError(f"config {self}: a tile must have {MMA_ROWS} rows and {MMA_COLUMNS} columns or more")
        if self.tile_m & (self.tile_m - 1) or self.tile_n & (self.tile_n - 1) or self.threads > _MOST_THREADS:
            raise ArgumentError(f"config {self}: tiles must be powers of two, and warps at most {_MOST_THREADS // 32}")
        if self.registers > _MOST_REGISTERS:
            raise ArgumentError(f"config {self}: a thread has {self.registers} registers, of {_MOST_REGISTERS}")

    @property
    def tile_elements(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Rows of A of a lane, contiguous."""
        return self.tile_m // MMA_COLUMNS

    @property
    def columns(self) -> int:
        """Columns of B of a lane, contiguous."""
        return self.tile_n // MMA_COLUMNS

    @property
    def registers(self) -> int:
        """Registers of a thread for accumulators and loaded elements."""
        return self.tile_elements // 32 + 2 * self.unroll * (self.rows + self.columns)
