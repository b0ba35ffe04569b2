"""Warpgroups that take turns: what the kernel takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.hopper_rungs import hopper_spec

from .config import PingpongConfig

SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA both ways, clusters; warpgroups take turns",
    configs=(PingpongConfig(), PingpongConfig(tile_n=192, stages=4)),
)
