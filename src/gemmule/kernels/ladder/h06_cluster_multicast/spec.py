"""Clusters that share slices: what the kernel takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.hopper_rungs import hopper_spec

from .config import ClusterConfig

SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, TMA, persistent CTAs; clusters share slices",
    configs=(ClusterConfig(), ClusterConfig(tile_n=128)),
)
