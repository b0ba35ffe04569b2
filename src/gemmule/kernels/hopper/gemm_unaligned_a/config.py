"""The config of hopper_gemm_unaligned_a."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.gemm_unaligned.config import PAD, UnalignedGemmConfig
from gemmule.kernels.hopper.tile_config import BARRIER_BYTES, CONSUMERS, K_BYTES, MMA_M, THREADS

#: Rows of which a warp's 16 are of one class.
_ROWS = 128
#: Columns that a warp's instructions have at once.
_COLUMNS = 8
#: Bytes of a row of a k-tile of A: a chunk of 16 more than its elements.
_ROW_BYTES = K_BYTES + 16


@dataclass(frozen=True)
class UnalignedAConfig(UnalignedGemmConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups.

    Where a cluster splits K, a CTA has one tile, and receives partial sums where the stages were.
    """

    swap_ab: int = 0  #: 1: the kernel multiplies the transposes, and has the transpose of D's tile.

    switches: ClassVar[frozenset[str]] = UnalignedGemmConfig.switches | {"swap_ab"}

    def _why_not_cluster(self) -> str | None:
        if self.tile_m % _ROWS:
            return f"tile_m must be a multiple of {_ROWS}"
        if self.cluster_k > 1 and (self.pingpong or self.cluster_size > self.cluster_k):
            return "where cluster_k is more than 1, pingpong must be 0, and cluster_m and cluster_n 1"
        if self.columns % (_ROWS // MMA_M * _COLUMNS):
            return f"tile_n / cluster_k must be a multiple of {_ROWS // MMA_M * _COLUMNS}"
        if self.cluster_k > 1 and self.tile_elements * 4 > (self.tile_m + self.tile_n) * K_BYTES * self.stages:
            return "the stages must have room for the partial sums of a tile"
        return super()._why_not_cluster()

    @property
    def tile_n_multiple(self) -> int:
        return _COLUMNS

    def partial_sums_bytes(self, cluster_k: int) -> int:
        del cluster_k
        return 0

    @property
    def register_threads(self) -> int:
        return THREADS

    @property
    def stages_bytes(self) -> int:
        return BARRIER_BYTES + (self.tile_m * _ROW_BYTES + self.tile_n * K_BYTES) * self.stages

    def shared_bytes_of(self, itemsize: int) -> int:
        if not self.swap_ab:
            return super().shared_bytes_of(itemsize)
        # Warps that share a tile write 16 rows of D each at once: 64 of a warpgroup.
        rows = min(CONSUMERS * MMA_M, self.columns) if self.cluster_k > 1 else CONSUMERS * MMA_M
        return self.stages_bytes + rows * itemsize * (self.tile_m + PAD)
