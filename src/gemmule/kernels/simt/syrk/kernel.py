"""SYRK in float32: only the tiles on and below the diagonal.

Idea
    A * A.T is symmetric: half of it needs no computing. One launch whose CTAs are the tiles on and below the diagonal
    computes that half, and none of its CTAs is empty.
Change from g07_cp_async
    The scheduler: the number of a CTA leads to a tile of a block lower triangle with steps of 256, in groups of rows as
    before. Rows of a larger matrix have columns to the left of their first step, all of which are computed.
Data movement
    That of g07_cp_async, for each tile.
Limits
    Tiles that the diagonal crosses are computed whole: of a triangle with n rows, about 256 / n more than the half.
    The last wave of CTAs may leave multiprocessors idle, but there is only one, where parts of the triangle that are
    launched one after another would have one each.
"""

from __future__ import annotations

from cutlass import Int32

from gemmule.core.spec import Buildable
from gemmule.kernels.ladder.g07_cp_async.kernel import CpAsync, arguments
from gemmule.kernels.parts.tile_schedulers import LowerTriangularTiles
from gemmule.kernels.simt.config import CpAsyncConfig


def buildable(config: CpAsyncConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    return Buildable(CpAsync(config, types, LowerTriangularTiles), (*arguments(types), Int32(0)))
