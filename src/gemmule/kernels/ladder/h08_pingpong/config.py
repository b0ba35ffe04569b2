"""The config of h08_pingpong."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.ladder.hopper_rung_config import PersistentConfig

#: CTAs of a cluster, and epilogue tiles that a warpgroup has in shared memory.
CLUSTER, BUFFERS = 2, 2


@dataclasses.dataclass(frozen=True)
class PingpongConfig(PersistentConfig):
    """A tile of D that one of two consumer warpgroups computes while the other writes its own; else as the rung before.

    Attributes
    ----------
    tile_m, tile_n, stages, group, ctas : int
        As of `PersistentConfig`.
    """

    tile_n: int = 128
    stages: int = 5

    warpgroups_per_tile: ClassVar[int] = 1
    cluster: ClassVar[int] = CLUSTER
    boxes: ClassVar[int] = CONSUMERS * BUFFERS
