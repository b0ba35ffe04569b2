"""CTAs that stay: what the kernel takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.hopper_rungs import hopper_spec

from .config import StayingConfig

SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA, roles; persistent CTAs",
    configs=(StayingConfig(), StayingConfig(tile_n=128)),
)
