"""The configs of quantisation."""

from __future__ import annotations

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

#: Elements that a thread reads at once, lanes that read 128 of a row, and rows of a tile.
VECTOR, LANES, ROWS = 8, 16, 16


@dataclass(frozen=True)
class QuantizeConfig(Config):
    """Division of a matrix among threads."""

    threads: int = 256  #: Threads of a CTA, which has a row; for other parts 256, 16 for each of 16 rows.
    vectors: int = 4  #: Vectors of 8 elements that each of them has in registers.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads % 32 or self.threads > 1024:
            raise ArgumentError(f"config {self}: threads must be a multiple of 32 up to 1024")
