"""Tiles of the GEMM that takes every problem."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass


@dataclass(frozen=True)
class ReferenceConfig(Config):
    """Tile of C that a CTA computes, and the depth of a k-tile.

    Attributes
    ----------
    tile_m, tile_n, tile_k : int
        Elements; 16 divides tile_m and tile_n.
    """

    tile_m: int = 64
    tile_n: int = 64
    tile_k: int = 16

    @property
    def threads(self) -> int:
        """Threads of a CTA: 16 x 16, each with every 16th row and column of the tile."""
        return 256

    def shared_bytes(self, itemsize: int, num_b: int = 1) -> int:
        """Return the shared memory: one k-tile of A and one of each B, each column padded by an element."""
        tile_a, tile_b = (-(-(extent + 1) * self.tile_k * itemsize // 16) * 16 for extent in (self.tile_m, self.tile_n))
        return tile_a + tile_b * num_b
