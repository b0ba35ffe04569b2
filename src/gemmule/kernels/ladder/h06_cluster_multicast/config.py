"""The config of h06_cluster_multicast."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.kernels.ladder.hopper_rung_config import PersistentConfig

#: CTAs of a cluster.
CLUSTER = 2


@dataclasses.dataclass(frozen=True)
class ClusterConfig(PersistentConfig):
    """As the rung before; TMA multicasts k-tiles of B to a cluster of two CTAs."""

    cluster: ClassVar[int] = CLUSTER
