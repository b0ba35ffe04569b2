"""The config of hopper_gemm_unaligned."""

from __future__ import annotations

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M, THREADS, WarpScheduleConfig, max_active_clusters
from gemmule.kernels.parts.hopper_facts import SMS

#: Elements between two rows of D in shared memory, beyond the rows themselves: rows that a warp stores at once then lie
#: in different banks, as far as they begin as many words from a multiple of 16 bytes: up to 3.
PAD = 8
#: Most accumulators of a thread, and threads among which all registers of an SM are divided for them: those that a CTA
#: leaves are for the copies before and after the product, which are resident at the same time.
_REGISTER_THREADS = (32, 640), (80, 512)
#: Granularity of the columns of a CTA's part of a tile, and of a tile: with elements of 32 bits, wgmma takes 32.
_COLUMNS, _TILE_N = 8, 32


@dataclass(frozen=True)
class UnalignedGemmConfig(WarpScheduleConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups."""

    stages: int = 5
    pingpong: int = 1
    #: cluster_m, cluster_n: CTAs of a cluster along M and N, to which TMA multicasts k-tiles.
    cluster_m: int = 1
    cluster_n: int = 1
    #: CTAs of a cluster that share a tile along K: each accumulates a part of K, and writes a part of the columns.
    cluster_k: int = 1
    group: int = 8  #: Tiles that the raster goes down before it goes to the right.
    ctas: int = SMS  #: CTAs that share all tiles: the SMs of the chip.

    def _why_not_cluster(self) -> str | None:
        if self.cluster_m not in (1, 2, 4) or self.cluster_n not in (1, 2, 4):
            return "cluster_m and cluster_n must be 1, 2 or 4"
        if self.cluster_size > (most := min(8, self.ctas)):
            return f"cluster_m * cluster_n * cluster_k is {self.cluster_size}, of at most {most} (8, or fewer ctas)"
        if self.tile_n % (_COLUMNS * self.cluster_k):
            return f"tile_n / cluster_k, the columns that each CTA writes, must be a multiple of {_COLUMNS}"
        return None

    @property
    def tile_n_multiple(self) -> int:
        return _TILE_N

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def tma_box_rows_a(self) -> int:
        return self.tile_m // self.cluster_n

    @property
    def columns(self) -> int:
        """Columns of a tile that a CTA writes."""
        return self.tile_n // self.cluster_k

    @property
    def register_threads(self) -> int:
        """Threads among which the registers of an SM are divided."""
        accumulators = self.mma_tiles_m * self.tile_n // 2
        return next((threads for most, threads in _REGISTER_THREADS if accumulators <= most), THREADS)

    @property
    def max_active_clusters(self) -> int:
        """Most clusters that are resident at once."""
        return max_active_clusters(self.ctas, self.cluster_size)

    @property
    def shared_bytes(self) -> int:
        return self.shared_bytes_of(2)

    def shared_bytes_of(self, itemsize: int) -> int:
        """Return the shared memory of a CTA for elements of D of so many bytes."""
        # Each consumer warpgroup has 64 rows of D.
        rows = CONSUMERS * MMA_M * itemsize * (self.columns + PAD)
        return self.stages_bytes + rows + self.partial_sums_bytes(self.cluster_k)
