"""The configs of Hopper's SYRK kernel."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.tile_config import BOX_M, CONSUMERS, MAX_SHARED_BYTES

#: Pairs of epilogue tiles that a warpgroup has in shared memory where they fit.
_PAIRS = (2, 1)
#: Bytes of a row of an epilogue tile and the gap after it, where threads write it.
_ROW_BYTES = 144


@dataclasses.dataclass(frozen=True)
class SyrkConfig(HopperGemmConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups.

    Attributes
    ----------
    tile_m, tile_n, stages, pingpong, cluster_m, cluster_n, cluster_k, group, ctas : int
        As of `HopperGemmConfig`; a group has whole multiples of the rows of tiles that are a number of columns high.
    swap_ab, stream_k : int
        0: the transpose of D is D.
    """

    tile_m: int = 128
    tile_n: int = 128
    stages: int = 6
    pingpong: int = 1
    cluster_m: int = 1

    def _why_not_shared_out(self) -> str | None:
        if self.swap_ab or self.stream_k:
            return "swap_ab and stream_k must be 0"
        return super()._why_not_shared_out()

    def buffers(self, itemsize: int, num_b: int = 1) -> int:
        """Return how many epilogue tiles a warpgroup has in shared memory, one of each pair for the mirror image."""
        count = self.blocks * self.tile_n // (self.cluster_k * self.box_n(itemsize, num_b))
        box = BOX_M * self.box_n(itemsize, num_b) * itemsize
        free = MAX_SHARED_BYTES - self.bytes_beside_subtiles
        return 2 * next((some for some in _PAIRS if count % some == 0 and CONSUMERS * 2 * some * box <= free), 1)

    @property
    def holds_rows(self) -> bool:
        """Whether the rows that threads write, of an epilogue tile and its mirror image, fit into shared memory."""
        return MAX_SHARED_BYTES - self.bytes_beside_subtiles >= CONSUMERS * 2 * BOX_M * _ROW_BYTES

    def _subtiles_bytes(self, num_b: int) -> int:
        nbytes = super()._subtiles_bytes(num_b)
        return max(nbytes, 2 * BOX_M * _ROW_BYTES) if self.holds_rows else nbytes

    def tiles(self, m: int, batch: int) -> int:
        """Return how many tiles of whole clusters are block lower triangular: on the diagonal or below it."""
        rows, cols = self.tile_m * self.cluster_m, self.tile_n * self.cluster_n
        return batch * sum((min(row + rows, m) - 1) // cols + 1 for row in range(0, m, rows))
