"""Rung 13: square matrices within their own memory, by pairs of tiles that change places.

Idea
    A tile may be written only where everything has been read: a CTA reads a tile and its mirror image, and writes each
    where the other one was. The tiles of the diagonal are their own images.
Change from the rung before
    Two tiles in shared memory; the grid has a CTA for each pair. Row y of the tiles above the diagonal and row
    tiles - 1 - y make one line of tiles + 1 pairs together, so that the grid is a rectangle.
Data movement
    As rung 12, in half of the memory.
Limits
    Device memory. Only two axes of equal length can change places like this.
Sources
    None beyond those of the rungs before.
"""

from __future__ import annotations

from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.transpose.byte_tile_config import ByteTileConfig
from gemmule.kernels.transpose.byte_tiles import ByteTile


class InPlaceTranspose:
    """Exchanges S[i, j, l] and S[j, i, l]: D is the memory of S, with i and j in each other's place."""

    def __init__(self, config: ByteTileConfig, types: dict[str, str]) -> None:
        self.tile = ByteTile(config, types)
        self.side, self.threads = self.tile.tile_i, config.threads

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        tiles = cute.ceil_div(mS.shape[0], self.side)
        pairs = (tiles + 1) * cute.ceil_div(tiles, 2)
        self.kernel(mS, mD).launch(
            grid=(pairs * mS.shape[2] * mS.shape[3] * mS.shape[4], 1, 1), block=(self.threads, 1, 1)
        )

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


def buildable(config: ByteTileConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size and those rows, with stand-ins for its arguments."""
    name = types["element"]
    vector = 128 // cute_type(name).width if types["rows"] == "wide" else 1
    arguments = tuple(major_tensor(name, unit, batch=3, vector=vector) for unit in (0, 1))
    return Buildable(InPlaceTranspose(config, types), arguments)
