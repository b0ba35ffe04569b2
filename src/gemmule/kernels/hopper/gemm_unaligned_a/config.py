"""The config of hopper_gemm_unaligned_a."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.gemm_unaligned.config import PAD, UnalignedGemmConfig
from gemmule.kernels.hopper.tile_config import BARRIER_BYTES, CONSUMERS, K_BYTES, MMA_M

#: Rows of which a warp's 16 are of one class.
_ROWS = 128
#: Bytes of a row of a k-tile of A: a chunk of 16 more than its elements.
_ROW_BYTES = K_BYTES + 16


@dataclass(frozen=True)
class UnalignedAConfig(UnalignedGemmConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups."""

    swap_ab: int = 0  #: 1: the kernel multiplies the transposes, and has the transpose of D's tile.

    switches: ClassVar[frozenset[str]] = UnalignedGemmConfig.switches | {"swap_ab"}

    def _why_not_cluster(self) -> str | None:
        if self.tile_m % _ROWS:
            return f"tile_m must be a multiple of {_ROWS}"
        if self.cluster_k > 1:
            return "cluster_k must be 1"
        return super()._why_not_cluster()

    @property
    def stages_bytes(self) -> int:
        return BARRIER_BYTES + (self.tile_m * _ROW_BYTES + self.tile_n * K_BYTES) * self.stages

    def shared_bytes_of(self, itemsize: int) -> int:
        if not self.swap_ab:
            return super().shared_bytes_of(itemsize)
        # Warps that share a tile write 16 rows of D each at once: 64 of a warpgroup.
        return self.stages_bytes + CONSUMERS * MMA_M * itemsize * (self.tile_m + PAD)
