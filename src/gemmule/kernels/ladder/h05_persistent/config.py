"""The config of h05_persistent."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rung_config import PersistentConfig


@dataclasses.dataclass(frozen=True)
class StayingConfig(PersistentConfig):
    """A tile of D that two consumer warpgroups compute, its stages, the raster, and the persistent CTAs."""
