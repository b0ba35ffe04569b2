"""Warpgroups that take turns: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from gemmule.kernels.ladder.hopper_rungs import CONSUMERS, MMA_ROWS, PersistentConfig, hopper_spec

#: CTAs of a cluster, and boxes of D that a warpgroup has in shared memory.
CLUSTER, BUFFERS = 2, 2


@dataclasses.dataclass(frozen=True)
class PingpongConfig(PersistentConfig):
    """A tile that one of two warpgroups multiplies while the other writes its own; CTAs stay, two share slices of B.

    Attributes
    ----------
    tile_m, tile_n : int
        Elements: multiples of 64, tile_n at most 256.
    stages : int
        Slices in shared memory.
    group : int
        Tiles that are taken downwards before they go to the right.
    ctas : int
        CTAs that share all tiles: the multiprocessors of the chip.
    """

    tile_n: int = 128
    stages: int = 5

    rows: ClassVar[int] = MMA_ROWS
    cluster: ClassVar[int] = CLUSTER
    boxes: ClassVar[int] = CONSUMERS * BUFFERS


SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA both ways, clusters; warpgroups take turns",
    configs=(PingpongConfig(), PingpongConfig(tile_n=192, stages=4)),
)
