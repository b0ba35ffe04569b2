"""Double precision, rung 4: only the tiles on and below the diagonal.

Idea
    A matrix times its own transpose is its own mirror image: half of it needs no computing. One launch whose CTAs are
    the tiles on and below the diagonal computes that half, and none of its CTAs is empty.
Change from the rung before
    The order of tiles: the number of a CTA leads to one on or below a staircase with steps of 256, groups of rows as
    before. Rows of a larger matrix have columns to the left of their first step, all of which are computed.
Data movement
    That of the rung before, for each tile.
Limits
    Of squares of 256 on the diagonal all is computed: of a triangle with n rows, about 256 / n more than the half.
"""

from __future__ import annotations

from cutlass import Int32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.float64.gemm.kernel import MmaDouble
from gemmule.kernels.float64.gemm.kernel import buildable as whole
from gemmule.kernels.float64.gemm.spec import MmaDoubleConfig
from gemmule.kernels.parts.block_triangle import STEP
from gemmule.kernels.parts.raster import staircase_tile


class TriangleDouble(MmaDouble):
    """D = alpha * A @ B + beta * C on and below a staircase, for row-major C and D (M, N, 1)."""

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        tiles_m, tiles_n = cute.ceil_div(mD.shape[0], self.tile_m), cute.ceil_div(mD.shape[1], self.tile_n)
        # At most; the launch recipe decides.
        self.kernel(mA, mB, mC, mD, alpha, beta, first).launch(
            grid=(tiles_m * tiles_n, 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.resident,
            # Given, so that the compiler asks no driver.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, mD: cute.Tensor, alpha, beta, first):
        cta, _, _ = cute.arch.block_idx()
        tiles_m = cute.ceil_div(mD.shape[0], self.tile_m)
        tile_m, tile_n = staircase_tile(cta, tiles_m, first, STEP // self.tile_m, STEP // self.tile_n, self.group)
        gA, gB, gC, gD = (mX[None, None, 0] for mX in (mA, mB, mC, mD))
        self.compute(gA, gB, gC, gD, alpha, beta, tile_m * self.tile_m, tile_n * self.tile_n, 0)


def buildable(config: MmaDoubleConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for those layouts, with stand-ins for its arguments."""
    return Buildable(TriangleDouble(config, types), (*whole(config, types).arguments, Int32(0)))
