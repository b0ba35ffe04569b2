"""Clusters that share slices: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.kernels.ladder.hopper_rungs import PersistentConfig, hopper_spec

#: CTAs of a cluster.
CLUSTER = 2


@dataclasses.dataclass(frozen=True)
class ClusterConfig(PersistentConfig):
    """A tile that two warpgroups multiply; CTAs stay, and two of them share slices of B."""

    cluster: ClassVar[int] = CLUSTER


SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA, persistent CTAs; clusters share slices",
    configs=(ClusterConfig(), ClusterConfig(tile_n=128)),
)
