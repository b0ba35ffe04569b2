"""The config of hopper_gemm_unaligned."""

from __future__ import annotations

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.tile_config import CONSUMERS, MMA_M, WarpScheduleConfig
from gemmule.kernels.parts.hopper_facts import SMS

#: Elements between two rows of D in shared memory, beyond the rows themselves: rows that a warp stores at once then lie
#: in different banks.
PAD = 8


@dataclass(frozen=True)
class UnalignedGemmConfig(WarpScheduleConfig):
    """Tile of D, stages and schedule of the two consumer warpgroups."""

    stages: int = 5
    pingpong: int = 1
    group: int = 8  #: Tiles that the raster goes down before it goes to the right.
    ctas: int = SMS  #: CTAs that share all tiles: the SMs of the chip.

    @property
    def shared_bytes(self) -> int:
        return self.shared_bytes_of(2)

    def shared_bytes_of(self, itemsize: int) -> int:
        """Return the shared memory of a CTA for elements of D of so many bytes."""
        # Each consumer warpgroup has 64 rows of D.
        return self.stages_bytes + CONSUMERS * MMA_M * itemsize * (self.tile_n + PAD)
