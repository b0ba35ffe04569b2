"""The result through shared memory and TMA: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.kernels.ladder.hopper_rungs import CONSUMERS, PersistentConfig, hopper_spec

#: CTAs of a cluster, and boxes of D that a warpgroup has in shared memory.
CLUSTER, BUFFERS = 2, 2


@dataclasses.dataclass(frozen=True)
class StoreConfig(PersistentConfig):
    """A tile that two warpgroups multiply and write in boxes; CTAs stay, and two of them share slices of B."""

    cluster: ClassVar[int] = CLUSTER
    boxes: ClassVar[int] = CONSUMERS * BUFFERS


SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA both ways, roles, persistent CTAs, clusters",
    configs=(StoreConfig(), StoreConfig(tile_n=128)),
)
