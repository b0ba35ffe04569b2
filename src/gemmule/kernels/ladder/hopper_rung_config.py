"""Configs of the Hopper ladder's rungs."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.tile_config import CONSUMERS, EPI_TILE_M, EPI_TILE_N, K_BYTES, THREADS, HopperConfig
from gemmule.kernels.parts.hopper_facts import SMS, WARPGROUP

#: CTAs of a cluster, and epilogue tiles that a warpgroup has in shared memory.
CLUSTER, EPI_STAGES = 2, 2


@dataclass(frozen=True)
class RungConfig(HopperConfig):
    """A tile of D that one warpgroup computes, its stages, and the raster.

    Rungs add fields and state: `warpgroups_per_tile`; `threads` of a CTA; `cluster`, CTAs along M to which TMA
    multicasts k-tiles of B; `epi_tiles`, epilogue tiles in shared memory, 0 where threads write D by themselves.
    """

    stages: int = 1
    group: int = 8  #: Tiles that the raster goes down before it goes to the right.

    min_stages: ClassVar[int] = 1
    warpgroups_per_tile: ClassVar[int] = 1
    threads: ClassVar[int] = WARPGROUP
    epi_tiles: ClassVar[int] = 0

    @property
    def shared_bytes(self) -> int:
        return self.stages_bytes + self.epi_tiles * EPI_TILE_M * K_BYTES

    def grid(self, tiles: int) -> int:
        """Return the CTAs for a number of tiles."""
        return tiles


@dataclass(frozen=True)
class RolesConfig(RungConfig):
    """A tile of D that two consumer warpgroups compute, its stages, filled by a producer warpgroup, and the raster."""

    tile_n: int = 256
    stages: int = 4

    warpgroups_per_tile: ClassVar[int] = 2
    threads: ClassVar[int] = THREADS


@dataclass(frozen=True)
class PersistentConfig(RolesConfig):
    """As `RolesConfig`, for persistent CTAs."""

    ctas: int = SMS  #: CTAs that share all tiles: the SMs of the chip.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ctas < self.cluster_size:
            raise ArgumentError(f"config {self}: ctas must be {self.cluster_size} or more, the CTAs of a cluster")

    def grid(self, tiles: int) -> int:
        return min(tiles, self.ctas // self.cluster_size * self.cluster_size)


@dataclass(frozen=True)
class ClusterConfig(PersistentConfig):
    """As `PersistentConfig`; TMA multicasts k-tiles of B to a cluster of two CTAs."""

    cluster_size: ClassVar[int] = CLUSTER


@dataclass(frozen=True)
class StoreConfig(ClusterConfig):
    """As `ClusterConfig`; D is written in epilogue tiles, by TMA."""

    epi_tiles: ClassVar[int] = CONSUMERS * EPI_STAGES

    def _why_not_tile(self) -> str | None:
        count = self.mma_tiles_m * self.tile_n // EPI_TILE_N
        if (reason := super()._why_not_tile()) is None and count % EPI_STAGES:
            reason = (
                f"a warpgroup has {count} epilogue tiles of a tile, which must be a multiple of {EPI_STAGES} stages"
            )
        return reason


@dataclass(frozen=True)
class PingpongConfig(StoreConfig):
    """As `StoreConfig`; a warpgroup computes a tile by itself while the other one writes its own."""

    tile_n: int = 128
    stages: int = 5

    warpgroups_per_tile: ClassVar[int] = 1
