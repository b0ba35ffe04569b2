"""The configs of Hopper's SYRK kernel."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.tile_config import CONSUMERS, EPI_TILE_M, MAX_SHARED_BYTES

#: Epilogue stages that a warpgroup has in shared memory where they fit, and the epilogue tiles of each: one, and its
#: mirror image.
_EPI_STAGES, TILES_PER_STAGE = (2, 1), 2
#: Bytes of a row of an epilogue tile and the gap after it, where threads write it.
_ROW_BYTES = 144


@dataclass(frozen=True)
class SyrkConfig(HopperGemmConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups.

    A group has whole multiples of the rows of tiles that are a number of columns high. `swap_ab`, `split_k` and
    `side_by_side` are 0, consumers 2: the transpose of D is D.
    """

    tile_m: int = 128
    tile_n: int = 128
    stages: int = 6
    pingpong: int = 1
    cluster_m: int = 1

    batched: ClassVar[bool] = False

    def _why_not_cluster(self) -> str | None:
        if self.swap_ab or self.split_k or self.side_by_side or self.consumers > CONSUMERS:
            return "swap_ab, split_k and side_by_side must be 0, consumers 2"
        if self.cluster_k > 1 and self.cluster_m * self.cluster_n > 1:
            return "a cluster shares loads (cluster_m, cluster_n) or accumulators (cluster_k), not both"
        return super()._why_not_cluster()

    def epi_stages(self, itemsize: int, num_b: int = 1) -> int:
        """Return how many epilogue stages a warpgroup has in shared memory: they divide its tile's epilogue tiles."""
        count = self.mma_tiles_m * self.tile_n // (self.cluster_k * self.epi_tile_n(itemsize, num_b))
        stage_bytes = TILES_PER_STAGE * EPI_TILE_M * self.epi_tile_n(itemsize, num_b) * itemsize
        free = MAX_SHARED_BYTES - self.bytes_without_epi_tiles
        fitting = (n for n in _EPI_STAGES if count % n == 0 and CONSUMERS * n * stage_bytes <= free)
        return next(fitting, 1)

    @property
    def holds_rows(self) -> bool:
        """Whether the rows that threads write, of an epilogue tile and its mirror image, fit into shared memory."""
        return MAX_SHARED_BYTES - self.bytes_without_epi_tiles >= CONSUMERS * TILES_PER_STAGE * EPI_TILE_M * _ROW_BYTES

    def _epi_tiles_bytes(self, num_b: int) -> int:
        nbytes = TILES_PER_STAGE * super()._epi_tiles_bytes(num_b)
        return max(nbytes, TILES_PER_STAGE * EPI_TILE_M * _ROW_BYTES) if self.holds_rows else nbytes

    def tiles(self, m: int, batch: int) -> int:
        """Return how many tiles of whole clusters are block lower triangular: on the diagonal or below it."""
        rows, cols = self.tile_m * self.cluster_m, self.tile_n * self.cluster_n
        whole = max(-(-m // rows) - 1, 0)
        return batch * (_floors(whole, rows, rows - 1, cols) + whole + (m - 1) // cols + 1)


def _floors(count: int, step: int, first: int, divisor: int) -> int:
    """Return the sum of the first values of ``(first + step * i) // divisor``, in steps as of Euclid's algorithm."""
    found = count * (count - 1) // 2 * (step // divisor) + count * (first // divisor)
    step, first = step % divisor, first % divisor
    above, rest = divmod(step * count + first, divisor)
    return found + _floors(above, divisor, rest, step) if above else found
