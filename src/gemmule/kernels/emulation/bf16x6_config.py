"""The configs of the bf16x6 kernels, and how operands are split."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.config import Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, HopperConfig
from gemmule.kernels.parts.hopper_facts import SMS

#: Parts of a float32, the greatest first; K of a k-tile, to multiples of which the parts of a line are padded.
PARTS, SLICE = 3, K_BYTES // 2
#: Contiguous elements that a thread splits: 32 bytes in, three times 16 bytes out.
RUN = 8
#: K-tiles whose accumulators are added to those before them in device memory: K of 1024.
ASIDE = 16


@dataclass(frozen=True)
class SplitConfig(Config):
    """Config of the split of operands."""

    threads: int = 256  #: Threads of a CTA, a multiple of 32.
    runs: int = 1  #: Vectors of 8 contiguous elements that each of them splits.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ArgumentError(f"config {self}: threads must be a multiple of 32 up to 1024")


@dataclass(frozen=True)
class SixProductsConfig(HopperConfig):
    """Tile of D and stages: 128 rows, 64 for each of two warpgroups."""

    tile_n: int = 192
    stages: int = 5
    #: K that the tensor cores accumulate, 32 or 64, before the result is rounded and added to other accumulators.
    depth: int = 32
    group: int = 8  #: Tiles that the raster goes down before it goes to the right.
    ctas: int = SMS  #: CTAs that share all tiles: the SMs of the chip.

    min_stages: ClassVar[int] = PARTS
    # A thread has half as many accumulators as other kernels, twice.
    max_n: ClassVar[int] = 192

    def _why_not_tile(self) -> str | None:
        if self.tile_m != CONSUMERS * MMA_M:
            return f"tile_m must be {CONSUMERS * MMA_M}"
        if self.depth not in (SLICE // 2, SLICE):
            return f"depth must be {SLICE // 2} or {SLICE}"
        return super()._why_not_tile()
