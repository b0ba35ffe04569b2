"""The config of h03_stages."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rung_config import RungConfig


@dataclasses.dataclass(frozen=True)
class StagesConfig(RungConfig):
    """A tile of D that one warpgroup computes, its stages, at least 2, and the raster."""

    stages: int = 3
