"""The transpose of square matrices within their own memory: what it takes, how it is launched."""

from __future__ import annotations

import math

from gemmule.core.arch import Arch
from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import KernelSpec
from gemmule.kernels.transpose.byte_tile_config import (
    BATCH_DIMS,
    ByteTileConfig,
    launches_overlap,
    tile_cost,
    tile_params,
    tile_signature,
    tile_signatures,
    why_not_tiles,
)

#: Tiles that a CTA exchanges.
_PAIR = 2


def why_not(problem: TransposeProblem, arch: Arch, config: ByteTileConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    if not problem.in_place:
        return "this kernel transposes within one memory"
    source, target = problem.source, problem.target
    mirrored = (target.row_stride, target.col_stride, target.batch_strides)
    if problem.rows != problem.cols or mirrored != (source.col_stride, source.row_stride, source.batch_strides):
        return "within one memory only two axes of equal length can change places"
    return why_not_tiles(problem, config, shared_tiles=_PAIR)


def launch(problem: TransposeProblem, config: ByteTileConfig) -> Launch:
    """Return the launch recipe: one CTA for each pair of tiles, see the kernel."""
    tiles, _ = config.tiles(problem)
    return Launch(
        grid=((tiles + 1) * -(-tiles // 2) * math.prod(problem.batch), 1, 1),
        block=(config.threads, 1, 1),
        shared_bytes=_PAIR * config.tile_bytes(problem.itemsize),
        params=tile_params(problem),
        overlaps=launches_overlap(problem),
    )


SPEC = KernelSpec(
    name="transpose_in_place",
    operation="transpose",
    summary="square matrices in their own memory: elements of 1 to 16 bytes, neighbours that touch, any pitch, batch",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        ByteTileConfig(256, 256, 256, 1),
        ByteTileConfig(128, 128, 64, 1),
    ),
    signatures=tile_signatures,
    why_not=why_not,
    signature=tile_signature,
    launch=launch,
    batch_dims=BATCH_DIMS,
    cost=tile_cost,
    in_place=True,
)
