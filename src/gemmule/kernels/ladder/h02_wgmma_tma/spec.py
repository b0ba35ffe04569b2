"""wgmma and TMA, one slice at a time: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.hopper_rungs import hopper_spec

from .config import WgmmaConfig

SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma from shared memory, slices by TMA, one at a time",
    configs=(WgmmaConfig(),),
)
