"""The transpose of rows that begin anywhere: what it takes, how it is launched."""

from __future__ import annotations

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.transpose.byte_tile_config import BATCH_DIMS, tile_launch
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


SPEC = KernelSpec(
    name="transpose_whole_sectors",
    operation="transpose",
    summary="elements of 1 to 8 bytes, rows that begin anywhere: whole words read, whole sectors written, batch",
    package="gemmule.kernels.transpose.tiled",
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
    launch=tile_launch,
    batch_dims=BATCH_DIMS,
    cost=sector_cost,
)
