"""SYRK in double precision: only the tiles on and below the diagonal.

Idea
    A * A.T is symmetric: half of it needs no computing. One launch whose CTAs are the tiles on and below the diagonal
    computes that half, and none of its CTAs is empty.
Change from float64_gemm
    The scheduler: the number of a CTA leads to a tile of a block lower triangle with steps of 256, in groups of rows as
    before. Rows of a larger matrix have columns to the left of their first step, all of which are computed.
Data movement
    That of float64_gemm, for each tile.
Limits
    Blocks of 256 x 256 on the diagonal are computed whole: of a triangle with n rows, about 256 / n more than the half.
"""

from __future__ import annotations

from cutlass import Int32

from gemmule.core.spec import Buildable
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.kernel import Float64Gemm, arguments
from gemmule.kernels.parts.tile_schedulers import LowerTriangularTiles


def buildable(config: Float64Config, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    return Buildable(Float64Gemm(config, types, LowerTriangularTiles), (*arguments(types), Int32(0)))
