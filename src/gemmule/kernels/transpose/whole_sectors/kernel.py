"""Rung 14: rows that begin anywhere, read in whole words and written in whole sectors.

Idea
    Where the pitch is no multiple of 32 bytes, tiles of a fixed width end within sectors, and two CTAs write one
    sector, which the L2 cache must put together. A tile's row that begins where a sector of the target does, another
    element in every row, is written by one CTA in whole sectors.
Change from the rung before
    The tile holds a sector more of each of its rows than it writes. Elements of 1 or 2 bytes are read as the aligned
    words that they lie in, and shifted into place between neighbouring lanes, no longer one by one.
Data movement
    Every element is written once. Every row of a tile straddles one sector of the source more than it fills, and each
    tile reads 32 bytes of every target's row that its neighbour reads too: the caches have both.
Limits
    The sectors that pass between the L2 cache and the multiprocessors; for elements of 1 byte also the instructions.
Sources
    "CUDA C++ Programming Guide", device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import begin_beside_launch_before
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.parts.tensors import major_tensor
from gemmule.kernels.transpose.sector_tile_config import SectorTileConfig
from gemmule.kernels.transpose.sector_tiles import SectorTile


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
        begin_beside_launch_before()
        self.tile.read(mS[None, None, l0, l1, l2], sT, i0, j0)
        cute.arch.sync_threads()
        self.tile.write(mD[None, None, l0, l1, l2], sT, i0, j0)


def buildable(config: SectorTileConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    arguments = tuple(major_tensor(types["element"], unit, batch=3) for unit in (0, 1))
    return Buildable(SectorTranspose(config, types), arguments)
