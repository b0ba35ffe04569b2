"""The production transpose: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import KernelSpec
from gemmule.kernels.transpose.byte_tile_config import (
    BATCH_DIMS,
    ByteTileConfig,
    tile_cost,
    tile_launch,
    tile_signature,
    tile_signatures,
    why_not_tiles,
)


def why_not(problem: TransposeProblem, arch: Arch, config: ByteTileConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return why_not_tiles(problem, config)


SPEC = KernelSpec(
    name="transpose_tiled",
    operation="transpose",
    summary="elements of 1 to 16 bytes, neighbours that touch, any pitch, batch: 16-byte accesses, packed words",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        ByteTileConfig(),
        ByteTileConfig(256, 256, 512),
        ByteTileConfig(512, 512, 512),
        ByteTileConfig(128, 128, 128),
        ByteTileConfig(128, 128, 256),
        ByteTileConfig(64, 64, 64),
        ByteTileConfig(16, 2048, 128),
        ByteTileConfig(2048, 16, 128),
        ByteTileConfig(256, 256, 512, 0),
        ByteTileConfig(256, 256, 256, 0),
        ByteTileConfig(256, 512, 512, 0),
        ByteTileConfig(128, 256, 256, 0),
        ByteTileConfig(128, 128, 256, 0),
        ByteTileConfig(128, 128, 128, 0),
        ByteTileConfig(128, 128, 64, 0),
        ByteTileConfig(64, 64, 64, 0),
    ),
    signatures=tile_signatures,
    why_not=why_not,
    signature=tile_signature,
    launch=tile_launch,
    batch_dims=BATCH_DIMS,
    cost=tile_cost,
)
