"""wgmma and TMA, one slice at a time: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rungs import RungConfig, hopper_spec


@dataclasses.dataclass(frozen=True)
class WgmmaConfig(RungConfig):
    """Tile of C that one warpgroup computes, a single slice in shared memory, and the order of tiles."""


SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma from shared memory, slices by TMA, one at a time",
    configs=(WgmmaConfig(),),
)
