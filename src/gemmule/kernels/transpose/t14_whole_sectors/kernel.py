"""Rung 14: rows that begin anywhere, read in whole words and written in whole sectors."""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.core.sector_tiles import SectorTileConfig
from gemmule.core.spec import Buildable
from gemmule.parts.raster import grouped_tile
from gemmule.parts.sector_tiles import SectorTile
from gemmule.parts.tensors import major_tensor


class SectorTranspose:
    """D[i, j, l] = S[i, j, l] for S with neighbours along i, and D with neighbours along j."""

    def __init__(self, config: SectorTileConfig, types: dict[str, str]) -> None:
        self.tile = SectorTile(config, types)
        self.threads, self.group = config.threads, config.group

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        tiles = cute.ceil_div(mS.shape[0], self.tile.tile_i) * cute.ceil_div(mS.shape[1], self.tile.tile_j)
        self.kernel(mS, mD).launch(
            grid=(tiles * mS.shape[2] * mS.shape[3] * mS.shape[4], 1, 1), block=(self.threads, 1, 1)
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tile_j, tile_i, _ = cute.arch.block_idx()
        l0, l1, l2 = 0, 0, 0
        if cutlass.const_expr(self.group > 0):
            cta = tile_j
            tiles_i = cute.ceil_div(mS.shape[0], self.tile.tile_i)
            tiles_j = cute.ceil_div(mS.shape[1], self.tile.tile_j)
            batch = cta // (tiles_i * tiles_j)
            tile_j, tile_i = grouped_tile(cta - batch * (tiles_i * tiles_j), tiles_j, tiles_i, self.group)
            l0, l1, l2 = batch % mS.shape[2], batch // mS.shape[2] % mS.shape[3], batch // mS.shape[2] // mS.shape[3]
        i0, j0 = tile_i * self.tile.tile_i, tile_j * self.tile.tile_j
        sT = self.tile.allocate(SmemAllocator())
        self.tile.read(mS[None, None, l0, l1, l2], sT, i0, j0)
        cute.arch.sync_threads()
        self.tile.write(mD[None, None, l0, l1, l2], sT, i0, j0)


def buildable(config: SectorTileConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    arguments = tuple(major_tensor(types["element"], unit, batch=3) for unit in (0, 1))
    return Buildable(SectorTranspose(config, types), arguments)
