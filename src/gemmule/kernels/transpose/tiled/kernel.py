"""The tiled transpose: packed words, 16-byte accesses, any row length and leading dimension.

Idea
    Shared memory holds words of 32 bits (or an element, if that is larger), each of elements that are contiguous in a
    row of the target. Elements of 1 or 2 bytes are packed on the way in: a thread reads 4 or 2 rows and exchanges bytes
    between its registers. From there on every element size is the same transpose of words.
Change from the rung before
    Every element size, batches, and tiles in groups: CTAs that run together read and write blocks of whole pages rather
    than stripes. A single matrix takes a grid of two dimensions, so that no CTA divides its index before it reads.
    Rows that are not aligned to 16 bytes are moved in one of two ways. `ByteTile` reads single elements, packs them and
    writes vectors from the first aligned one on, shifted over two words of the tile; the elements at both ends of the
    tile's rows are written alone. `SectorTile` (transpose_whole_sectors) reads the aligned words that hold the elements
    and shifts them into place between lanes; its tile holds a sector more of each row than it writes, so that every
    sector of the target is written by one CTA.
Data movement
    Every element is read once and written once: 2 * itemsize bytes an element. A warp reads 4 rows of 128 bytes and
    writes rows of 256. The tile's 16-byte chunks are swizzled by an XOR with the row, which leaves no bank conflict on
    either side. Unaligned rows straddle one sector more than they fill; with `SectorTile` each tile reads 32 bytes
    of every row that its neighbour reads too.
Limits
    Device memory; with unaligned rows the sectors between the L2 cache and the SMs, and for elements of 1 byte also the
    instructions.
Sources
    M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA technical blog: the tile. "CUDA C++ Programming
    Guide", shared memory: banks of wide accesses; device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.transpose.byte_tiles import ByteTile
from gemmule.kernels.transpose.frame import Transpose
from gemmule.kernels.transpose.sector_tiles import SectorTile
from gemmule.kernels.transpose.tile_config import ByteTileConfig, SectorTileConfig


class TiledTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j.

    Parameters
    ----------
    config : ByteTileConfig or SectorTileConfig
        The tile: of whole vectors or element by element, or read in whole words and written in whole sectors.
    types : dict
        The specialisation.
    """

    def __init__(self, config: ByteTileConfig | SectorTileConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile = SectorTile(config, types) if isinstance(config, SectorTileConfig) else ByteTile(config, types)
        self.group = config.group

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        launched, block = self.kernel(mS, mD), (self.threads, 1, 1)
        if cutlass.const_expr(self.tile.resident == 0):
            launched.launch(grid=(1, 1, 1), block=block)
        else:
            # The carveout is given so that the compiler needs no driver.
            launched.launch(
                grid=(1, 1, 1), block=block, min_blocks_per_mp=self.tile.resident, preferred_smem_carveout=100
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
        overlap_predecessor()
        self.tile.read(mS[None, None, l0, l1, l2], sT, i0, j0)
        cute.arch.sync_threads()
        self.tile.write(mD[None, None, l0, l1, l2], sT, i0, j0)


buildable = TiledTranspose.buildable
