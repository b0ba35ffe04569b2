"""The config of hopper_gemm_line_classes."""

from __future__ import annotations

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.tile_config import CONSUMERS, K_BYTES, MMA_M, THREADS, HopperConfig
from gemmule.kernels.parts.hopper_facts import WARPGROUP

#: Classes of lines of 16-bit elements, of all kernels that load such lines as they are: lines of one class lie a
#: multiple of 16 bytes apart, whatever the leading dimension. Elements of a k-tile along K.
CLASSES, TILE_K = 8, K_BYTES // 2
_WARP = 32
#: Most CTAs of a cluster.
_MOST_CTAS = 8


@dataclass(frozen=True)
class LineClassConfig(HopperConfig):
    """Tile of D, stages, and CTAs of a cluster that share the tile's K."""

    stages: int = 4
    cluster_m: int = 1  #: CTAs of a cluster along M, to which TMA multicasts k-tiles of B.
    #: CTAs of a cluster that share a tile along K: each accumulates a part of K, and writes a part of the columns.
    cluster_k: int = 1

    def _why_not_cluster(self) -> str | None:
        if self.cluster_k not in (1, 2, 4, 8) or self.cluster_m not in (1, 2, 4) or self.cluster_size > _MOST_CTAS:
            return f"cluster_k must be 1, 2, 4 or 8, cluster_m 1, 2 or 4, and both together {_MOST_CTAS} at most"
        if self.tile_n % MMA_M:
            return f"tile_n must be a multiple of {MMA_M}"
        if self.cluster_k > 1 and self.tile_elements * 4 > (self.tile_m + self.tile_n) * K_BYTES * self.stages:
            return "the stages must have room for the partial sums of a tile"
        return None

    @property
    def warpgroups_per_tile(self) -> int:
        return self.tile_m // MMA_M

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_k

    @property
    def columns(self) -> int:
        """Columns of a tile that a CTA writes."""
        return self.tile_n // self.cluster_k

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumer warpgroups, and a warp that issues loads, beside two of them a warpgroup."""
        return THREADS if self.warpgroups_per_tile == CONSUMERS else WARPGROUP + _WARP
