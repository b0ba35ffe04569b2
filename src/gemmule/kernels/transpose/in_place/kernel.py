"""Square matrices within their own memory: pairs of tiles are exchanged.

Idea
    A tile may be written only after all that it overwrites has been read: a CTA reads a tile and its mirror image into
    shared memory, and writes each in the place of the other. The tiles of the diagonal are their own images. Row y of
    the tiles on and above the diagonal and row tiles - 1 - y have tiles + 1 pairs together, so that the grid is a
    rectangle.
Data movement
    As the tiled transpose, in half of the memory.
Limits
    Device memory. Only two axes of equal length can be exchanged.
"""

from __future__ import annotations

from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.transpose.byte_tiles import ByteTile
from gemmule.kernels.transpose.frame import Transpose
from gemmule.kernels.transpose.tile_config import TilePairConfig


class InPlaceTranspose(Transpose):
    """Exchanges S[i, j, l] and S[j, i, l]: D is the memory of S, with i and j exchanged."""

    def __init__(self, config: TilePairConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile = ByteTile(config, types)
        self.side = self.tile.tile_i

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        cta, _, _ = cute.arch.block_idx()
        tiles = cute.ceil_div(mS.shape[0], self.side)
        pairs = (tiles + 1) * cute.ceil_div(tiles, 2)
        batch = cta // pairs
        l0, l1, l2 = batch % mS.shape[2], batch // mS.shape[2] % mS.shape[3], batch // mS.shape[2] // mS.shape[3]
        gS, gD = (mX[None, None, l0, l1, l2] for mX in (mS, mD))
        smem = SmemAllocator()
        sT, sImage = self.tile.allocate(smem), self.tile.allocate(smem)
        x, y = (cta - batch * pairs) % (tiles + 1), (cta - batch * pairs) // (tiles + 1)
        first, second = y, y + x
        if x >= tiles - y:
            first, second = tiles - 1 - y, x - 1
        overlap_predecessor()
        # The middle row of an odd number of tiles has no second half.
        if x < tiles - y or first != y:
            i0, j0 = first * self.side, second * self.side
            self.tile.read(gS, sT, i0, j0)
            if first != second:
                self.tile.read(gS, sImage, j0, i0)
            cute.arch.sync_threads()
            self.tile.write(gD, sT, i0, j0)
            if first != second:
                self.tile.write(gD, sImage, j0, i0)


buildable = InPlaceTranspose.buildable
