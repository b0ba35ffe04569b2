"""The tiled transpose of unaligned rows, by whole words and sectors: its limits."""

from __future__ import annotations

from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.cost import sector_cost
from gemmule.kernels.transpose.refusals import (
    rows_are_aligned,
    target_is_aligned,
    why_not_contiguous,
    why_not_itemsize,
    why_not_separate,
)
from gemmule.kernels.transpose.spec import transpose_spec
from gemmule.kernels.transpose.tile_config import SECTOR, WORD, SectorTileConfig

# Bytes of matrices with aligned rows from which on whole sectors were measured to be faster, by those of an element: in
# smaller ones the L2 cache merges the writes to a sector.
_LARGE = {1: 32 << 20, 2: 4 << 20, 4: 4 << 20, 8: 4 << 20}
# Shorter rows leave most of a tile empty.
_MIN_ROW = 64
# Bytes of the shorter side of aligned matrices that were measured to be faster in whole sectors.
_NARROW = 128


def refuse_sector_tiles(problem: TransposeProblem) -> str | None:
    """Return why no sector tiles can be moved, or None where that depends on the config."""
    item = problem.itemsize
    if reason := why_not_itemsize(problem, _LARGE) or why_not_contiguous(problem) or why_not_separate(problem, WORD):
        return reason
    if rows_are_aligned(problem):
        if target_is_aligned(problem, SECTOR) and min(problem.rows, problem.cols) * item > _NARROW:
            return "every row is aligned to 16 bytes, the target's to 32: whole vectors are faster"
        if problem.rows * problem.cols * item < _LARGE[item]:
            return (
                f"every row is aligned to 16 bytes: below a matrix of {_LARGE[item] >> 20} MiB whole vectors are faster"
            )
    if min(problem.rows, problem.cols) * item < _MIN_ROW:
        return f"rows of {min(problem.rows, problem.cols)} elements are less than {_MIN_ROW} bytes"
    return None


SPEC = transpose_spec(
    name="transpose_whole_sectors",
    summary="elements of 1 to 8 bytes, unaligned rows, batch: words of 4 or 8 bytes read, whole sectors written",
    package="gemmule.kernels.transpose.tiled",
    configs=(
        SectorTileConfig(),
        SectorTileConfig(group=0),
        SectorTileConfig(2, 256, 256, 0),
        SectorTileConfig(2, 256, 512, 0),
        SectorTileConfig(1, 128, 256, 0),
        SectorTileConfig(1, 64, 256, 0),
        SectorTileConfig(1, 64, 128, 0),
    ),
    itemsizes=tuple(_LARGE),
    refuses=refuse_sector_tiles,
    cost=sector_cost,
)
