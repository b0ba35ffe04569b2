"""The config of h02_wgmma_tma."""

from __future__ import annotations

import dataclasses

from gemmule.kernels.ladder.hopper_rung_config import RungConfig


@dataclasses.dataclass(frozen=True)
class WgmmaConfig(RungConfig):
    """A tile of D that one warpgroup computes, with one stage in shared memory, and the raster."""
