"""The result through shared memory and TMA: what the kernel takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.hopper_rungs import hopper_spec

from .config import StoreConfig

SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA both ways, roles, persistent CTAs, clusters",
    configs=(StoreConfig(), StoreConfig(tile_n=128)),
)
