"""Tiles of the GEMM with square tiles in shared memory."""

from __future__ import annotations

import dataclasses

from gemmule.core.dtype import FLOAT32
from gemmule.kernels.simt.row_major_config import RowMajorConfig


@dataclasses.dataclass(frozen=True)
class SharedTileConfig(RowMajorConfig):
    """Side of the square tiles.

    Attributes
    ----------
    side : int
        Rows, columns and depth: a CTA has side * side threads.
    """

    side: int = 32

    @property
    def tile(self) -> tuple[int, int, int]:
        return (self.side, self.side, self.side)

    @property
    def threads(self) -> int:
        return self.side * self.side

    @property
    def shared_bytes(self) -> int:
        """One tile of A and one of B."""
        return 2 * self.side * self.side * FLOAT32.itemsize
