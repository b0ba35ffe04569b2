"""The transpose without limits: its launch recipe."""

from __future__ import annotations

import functools
import math

from gemmule.core.launch import Launch
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import MAX_GRID
from gemmule.kernels.transpose.refusals import ITEMSIZES, why_not_itemsize
from gemmule.kernels.transpose.spec import batched_param, transpose_spec
from gemmule.kernels.transpose.tile_config import ReferenceConfig


def _launch(problem: TransposeProblem, config: ReferenceConfig) -> Launch:
    tiles = -(-problem.rows // config.tile) * -(-problem.cols // config.tile) * math.prod(problem.batch)
    operands = (("a", problem.source), ("d", problem.target))
    return Launch(
        # Beyond the grid's limit CTAs take several tiles.
        grid=(min(tiles, MAX_GRID[0]), 1, 1),
        block=(config.tile, config.rows, 1),
        shared_bytes=config.shared_bytes(problem.itemsize),
        params=tuple(batched_param(name, problem, x, (x.row_stride, x.col_stride), 64) for name, x in operands),
    )


SPEC = transpose_spec(
    name="transpose_reference",
    summary="elements of 1, 2, 4, 8 or 16 bytes, any strides, alignment, shape, batch: 32 x 32 tiles in shared memory",
    package=__package__,
    configs=(ReferenceConfig(),),
    itemsizes=ITEMSIZES,
    refuses=functools.partial(why_not_itemsize, itemsizes=ITEMSIZES),
    launch=_launch,
)
