"""The config of h04_warp_specialised."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rung_config import RolesConfig


@dataclasses.dataclass(frozen=True)
class SpecialisedConfig(RolesConfig):
    """A tile of D that two consumer warpgroups compute, its stages, which a producer fills, and the raster."""
