"""The configs of Hopper's grouped GEMM."""

from __future__ import annotations

import itertools
from typing import ClassVar

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS

#: Shared memory for the running sum of the groups' tiles. The last entry, for what is beyond all groups, and the ring
#: of dynamic scheduling are where the barriers leave room.
TABLE_BYTES = 4 * MAX_GROUPS
#: Words of 64 bits of the counter of dynamic scheduling: a flag and a number.
COUNTER_WORDS = 2


#: Space of a search: rows and columns of a tile and whether it is ping-pong, and clusters; with most stages.
_TILES = (
    (128, 256, 0),
    (256, 128, 0),
    (256, 192, 0),
    (128, 192, 0),
    (128, 128, 0),
    (128, 192, 1),
    (128, 160, 1),
    (192, 128, 1),
    (128, 128, 1),
    (64, 256, 1),
    (64, 192, 1),
    (64, 128, 1),
)
#: CTAs of a cluster along M and N, and whether scheduling is dynamic.
_CLUSTERS = ((1, 1, 0), (1, 1, 1), (2, 1, 0), (1, 2, 0), (1, 4, 0))
_MOST_STAGES = 12


@dataclass(frozen=True)
class GroupedConfig(HopperGemmConfig):
    """Tile of D, stages, cluster and schedule of the two consumer warpgroups.

    Attributes
    ----------
    tile_m, tile_n, stages, pingpong, cluster_m, cluster_n, group, ctas : int
        As of `HopperGemmConfig`.
    cluster_k, swap_ab, split_k, side_by_side, consumers : int
        1, 0, 0, 0 and 2.
    dynamic : int
        1: CTAs take tiles as they get to them, by a counter in device memory (`schedulers.work_counter`).
    """

    cluster_m: int = 1
    dynamic: int = 0

    switches: ClassVar[frozenset[str]] = frozenset({*HopperGemmConfig.switches, "dynamic"})
    batched: ClassVar[bool] = False

    def _why_not_cluster(self) -> str | None:
        if self.swap_ab or self.split_k or self.side_by_side or self.cluster_k > 1 or self.consumers > CONSUMERS:
            return "swap_ab, split_k and side_by_side must be 0, cluster_k 1, consumers 2"
        if self.dynamic and self.cluster_size > 1:
            return "with dynamic=1 each CTA takes tiles of its own: cluster_m and cluster_n must be 1"
        return super()._why_not_cluster()

    @property
    def bytes_without_epi_tiles(self) -> int:
        return super().bytes_without_epi_tiles + TABLE_BYTES


#: The widest tile whose columns are promoted at once; the cost model offers it to 8-bit floats only.
FOR_FLOAT8 = GroupedConfig(tile_m=128, tile_n=208, stages=4, dynamic=1)


def search_space() -> tuple[GroupedConfig, ...]:
    """Return the configs of a search, each with as many stages as there is memory for."""
    found = []
    for (tile_m, tile_n, pingpong), (cluster_m, cluster_n, dynamic) in itertools.product(_TILES, _CLUSTERS):
        for stages in range(_MOST_STAGES, 1, -1):
            try:
                one = GroupedConfig(
                    tile_m=tile_m, tile_n=tile_n, stages=stages, pingpong=pingpong, cluster_m=cluster_m,
                    cluster_n=cluster_n, dynamic=dynamic,
                )  # fmt: skip
            except ArgumentError:
                continue
            found.append(one)
            break
    return tuple(found)
