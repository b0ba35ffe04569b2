"""wgmma and TMA, several slices in shared memory: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.kernels.ladder.hopper_rungs import hopper_spec

from .config import StagesConfig

SPEC = hopper_spec(
    package=__package__,
    summary="float16 and bfloat16, pitches of whole 16 bytes: wgmma, slices by TMA, several on their way",
    configs=(StagesConfig(), StagesConfig(stages=2), StagesConfig(stages=6)),
)
