"""The config of h07_tma_store."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.ladder.hopper_rung_config import PersistentConfig

#: CTAs of a cluster, and epilogue tiles that a warpgroup has in shared memory.
CLUSTER, BUFFERS = 2, 2


@dataclasses.dataclass(frozen=True)
class StoreConfig(PersistentConfig):
    """As the rung before; D is written in epilogue tiles, by TMA."""

    cluster: ClassVar[int] = CLUSTER
    boxes: ClassVar[int] = CONSUMERS * BUFFERS
