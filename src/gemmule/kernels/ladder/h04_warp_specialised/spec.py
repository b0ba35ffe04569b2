"""Warpgroups with roles: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rungs import RolesConfig, hopper_spec


@dataclasses.dataclass(frozen=True)
class SpecialisedConfig(RolesConfig):
    """Tile of C that two warpgroups compute, which a third feeds, slices in shared memory, and the order of tiles."""


SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA; one warpgroup feeds two that multiply",
    configs=(SpecialisedConfig(), SpecialisedConfig(tile_n=128)),
)
