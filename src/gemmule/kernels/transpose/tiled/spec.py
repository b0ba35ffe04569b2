"""The transpose of any matrices with contiguous elements: its limits, and the spec of transposes in byte tiles."""

from __future__ import annotations

from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.transpose.cost import tile_costs
from gemmule.kernels.transpose.refusals import ITEMSIZES, rows_are_aligned, why_not_contiguous, why_not_itemsize
from gemmule.kernels.transpose.spec import element_signature, transpose_spec
from gemmule.kernels.transpose.tile_config import ByteTileConfig


def byte_tile_spec(**fields: Any) -> KernelSpec:
    """Return the spec of a transpose in byte tiles; fields of KernelSpec, as `transpose_spec` takes them."""
    return transpose_spec(itemsizes=ITEMSIZES, signatures=_signatures, signature=_signature, costs=tile_costs, **fields)


def refuse_byte_tiles(problem: TransposeProblem) -> str | None:
    """Return why no byte tiles can be moved, or None where that depends on the config."""
    if reason := why_not_itemsize(problem, ITEMSIZES) or why_not_contiguous(problem):
        return reason
    if problem.itemsize == VECTOR_BYTES and not rows_are_aligned(problem):
        return "elements of 16 bytes must be aligned to 16 bytes"
    return None


def _signature(problem: TransposeProblem, config: ByteTileConfig) -> Signature:
    return _rows_signature(problem.itemsize, config.is_wide and rows_are_aligned(problem))


def _signatures(arch: Arch) -> tuple[Signature, ...]:
    del arch
    return tuple(_rows_signature(size, wide) for size in ITEMSIZES for wide in (True, False))


def _rows_signature(itemsize: int, wide: bool) -> Signature:
    return (*element_signature(itemsize), ("rows", "wide" if wide else "narrow"))


SPEC = byte_tile_spec(
    name="transpose_tiled",
    summary="elements of 1 to 16 bytes, contiguous, any row stride, batch: 16-byte accesses, bytes packed into words",
    package=__package__,
    configs=(
        ByteTileConfig(),
        ByteTileConfig(256, 256, 512),
        ByteTileConfig(512, 512, 512),
        ByteTileConfig(128, 256, 256),
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
    refuses=refuse_byte_tiles,
    cost_in_us=True,
)
