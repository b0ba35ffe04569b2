"""wgmma and TMA, several slices in shared memory: what it takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rungs import RungConfig, hopper_spec


@dataclasses.dataclass(frozen=True)
class StagesConfig(RungConfig):
    """Tile of C, slices in shared memory, at least 2, and the order of tiles."""

    stages: int = 3


SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, slices by TMA, several on their way",
    configs=(StagesConfig(), StagesConfig(stages=2), StagesConfig(stages=6)),
)
