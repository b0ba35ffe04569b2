"""The configs of Hopper's grouped GEMM."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.hopper.gemm.config import HopperGemmConfig

#: Most groups along M or N, and shared memory for the running sum of their tiles, that of what is beyond them included.
MAX_GROUPS, TABLE_BYTES = 512, 2048


@dataclasses.dataclass(frozen=True)
class GroupedConfig(HopperGemmConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups.

    Attributes
    ----------
    tile_m, tile_n, stages, pingpong, cluster_m, cluster_n, group, ctas : int
        As of `HopperGemmConfig`.
    cluster_k, swap_ab, stream_k : int
        1, 0 and 0.
    """

    cluster_m: int = 1

    def _why_not_cluster(self) -> str | None:
        if self.swap_ab or self.stream_k or self.cluster_k > 1:
            return "swap_ab and stream_k must be 0, cluster_k 1"
        return super()._why_not_cluster()

    @property
    def bytes_without_epi_tiles(self) -> int:
        # The last entry of the running sum is where the barriers leave room.
        return super().bytes_without_epi_tiles + TABLE_BYTES
