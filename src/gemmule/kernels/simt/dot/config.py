"""Tiles of dot products."""

from __future__ import annotations

from gemmule.core.config import LARGEST_CLUSTER, Config
from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError

_WARP = 32


@dataclass(frozen=True)
class DotConfig(Config):
    """Tile of the result, whose products of K all threads share.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements of the result that each thread accumulates, and that a CTA writes.
    unroll : int
        k that a thread loads before it multiplies.
    threads : int
        Threads of a CTA, a multiple of 32, as many as the tile has elements at least.
    cluster_k : int
        CTAs of a cluster, each of which takes a part of K. 1, or from sm_90 on up to 16.
    """

    tile_m: int = 4
    tile_n: int = 4
    unroll: int = 2
    threads: int = 256
    cluster_k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads % _WARP or self.threads < self.tile_elements:
            raise ArgumentError(
                f"config {self}: a CTA must have whole warps, and as many threads as its tile has elements"
            )
        if self.cluster_k > LARGEST_CLUSTER:
            raise ArgumentError(f"config {self}: cluster_k must be at most {LARGEST_CLUSTER}")

    @property
    def tile_elements(self) -> int:
        return self.tile_m * self.tile_n

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.threads // _WARP
