"""The config of hopper_gemm_unaligned_a."""

from __future__ import annotations

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.gemm_unaligned.config import UnalignedGemmConfig
from gemmule.kernels.hopper.tile_config import BARRIER_BYTES, K_BYTES

#: Rows of which a warp's 16 are of one class.
_ROWS = 128
#: Bytes of a row of a k-tile of A: a chunk of 16 more than its elements.
_ROW_BYTES = K_BYTES + 16


@dataclass(frozen=True)
class UnalignedAConfig(UnalignedGemmConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups."""

    def _why_not_cluster(self) -> str | None:
        if self.tile_m % _ROWS:
            return f"tile_m must be a multiple of {_ROWS}"
        return super()._why_not_cluster()

    @property
    def stages_bytes(self) -> int:
        return BARRIER_BYTES + (self.tile_m * _ROW_BYTES + self.tile_n * K_BYTES) * self.stages
