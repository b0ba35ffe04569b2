"""The transpose of rows that begin anywhere: what it takes, how it is launched."""

from __future__ import annotations

import math

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.transpose.byte_tile_config import BATCH_DIMS, launches_overlap, tile_params
from gemmule.kernels.transpose.sector_tile_config import ITEMSIZES, SectorTileConfig, sector_cost, why_not_sector_tiles


def why_not(problem: TransposeProblem, arch: Arch, config: SectorTileConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    del arch
    return why_not_sector_tiles(problem, config)


def signature(problem: TransposeProblem, config: SectorTileConfig) -> Signature:
    """Specialise for the element size."""
    del config
    return (("element", opaque_dtype(problem.itemsize).name),)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every specialisation."""
    del arch
    return tuple((("element", opaque_dtype(size).name),) for size in ITEMSIZES)


def launch(problem: TransposeProblem, config: SectorTileConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile."""
    along_source, along_target = config.tiles(problem)
    grid = (along_target, along_source, 1)
    if config.group:
        grid = (math.prod((along_target, along_source, *problem.batch)), 1, 1)
    return Launch(
        grid=grid,
        block=(config.threads, 1, 1),
        shared_bytes=config.tile_bytes(problem.itemsize),
        params=tile_params(problem),
        overlaps=launches_overlap(problem),
    )


SPEC = KernelSpec(
    name="transpose_whole_sectors",
    operation="transpose",
    summary="elements of 1 to 8 bytes, rows that begin anywhere: whole words read, whole sectors written, batch",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        SectorTileConfig(),
        SectorTileConfig(group=0),
        SectorTileConfig(2, 256, 256, 0),
        SectorTileConfig(2, 256, 512, 0),
        SectorTileConfig(1, 128, 256, 0),
        SectorTileConfig(1, 64, 256, 0),
        SectorTileConfig(1, 64, 128, 0),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    batch_dims=BATCH_DIMS,
    cost=sector_cost,
)
