"""CTAs that stay: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rungs import PersistentConfig, hopper_spec


@dataclasses.dataclass(frozen=True)
class StayingConfig(PersistentConfig):
    """Tile of C that two warpgroups compute, slices in shared memory, the order of tiles, and the CTAs that stay."""


SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA, roles; persistent CTAs",
    configs=(StayingConfig(), StayingConfig(tile_n=128)),
)
