"""Permutations in tiles of merged axes: rows of several axes, read in whole words and written in whole sectors.

Idea
    Axes that follow one another without gaps in the source are one row of it, and those of the target one row of that.
    If the two have no axis in common, a permutation is a batch of transposes of long rows, though every axis may be
    short. The rows of a tile have no constant stride: a CTA computes their addresses first, and keeps them in
    shared memory.
Change from transpose_whole_sectors
    Addresses of rows are loaded from tables rather than added up.
Data movement
    As of `transpose_whole_sectors`; a warp that reads a row loads one address, a thread that writes 16 bytes another.
Limits
    Device memory; with short rows the parts of tiles that they do not fill.
Sources
    As of `transpose_tiled`.
"""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.raster import grouped_tile
from gemmule.kernels.transpose.blocks.origins import strided
from gemmule.kernels.transpose.frame import Transpose
from gemmule.kernels.transpose.merged.config import LEVELS, MergedConfig
from gemmule.kernels.transpose.merged.tile import MergedTile


class MergedTranspose(Transpose):
    """D = S element by element, each of which merges axes to rows.

    Parameters
    ----------
    config : MergedConfig
        The tile.
    types : dict
        ``element``, an opaque type.
    """

    def __init__(self, config: MergedConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile, self.group = MergedTile(config, types), config.group

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        self.kernel(mS, mD, numbers).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        """Move a tile.

        The axes of `mS` and `mD` are those of a row of the source, of a row of the target, and of the batch. `numbers`
        are the elements of both rows, and of all axes divisors and shifts.
        """
        (rows, cols), divisors = numbers[:2], numbers[2:]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        sources, targets, sT = self.tile.allocate(SmemAllocator())
        tiles_i, tiles_j = cute.ceil_div(rows, self.tile.tile_i), cute.ceil_div(cols, self.tile.tile_j)
        batch = cta // (tiles_i * tiles_j)
        tile_j, tile_i = grouped_tile(cta - batch * (tiles_i * tiles_j), tiles_j, tiles_i, self.group)
        i0, j0 = tile_i * self.tile.tile_i, tile_j * self.tile.tile_j
        begin = mS.iterator.toint() + self.offset(batch, mS, 2 * LEVELS, divisors)
        origin = mD.iterator.toint() + self.offset(batch, mD, 2 * LEVELS, divisors)
        # Beyond the last row it is read again.
        for row in cutlass.range(tid, self.tile.held * self.tile.pack, self.threads, unroll=1):
            at = self.offset(cutlass.min(j0 + row, cols - 1), mS, LEVELS, divisors)
            self.tile.put_source(sources, row, begin + at)
        for row in cutlass.range(tid, self.tile.tile_i, self.threads, unroll=1):
            at = self.offset(cutlass.min(i0 + row, rows - 1), mD, 0, divisors)
            targets[row] = origin + at + Int64(j0) * self.item
        far = Int64(rows)
        for axis in cutlass.range_constexpr(LEVELS, 2 * LEVELS):
            far += Int64(mS.shape[axis] - 1) * mS.stride[axis]
        apart = Boolean(True)
        for axis in cutlass.range_constexpr(LEVELS, 2 * LEVELS):
            apart = apart and (mS.shape[axis] == 1 or mS.stride[axis] >= 2 * self.pack)
        memory = (begin, begin + far * self.item), (rows, cols), apart
        cute.arch.sync_threads()
        overlap_predecessor()
        self.tile.read(memory, (sources, targets, sT), i0, j0)
        cute.arch.sync_threads()
        self.tile.write(memory, (sources, targets, sT), i0, j0)

    @cute.jit
    def offset(self, number, matrix: cute.Tensor, first: cutlass.Constexpr[int], divisors):
        """Return the bytes to an element, by its number along some axes."""
        rest, found = Uint32(number), Int64(0)
        for axis in cutlass.range_constexpr(first, first + LEVELS):
            above = Uint32(0)
            if cutlass.const_expr(axis + 1 < first + LEVELS):
                above = Uint32(cute.arch.mul_hi(rest, Uint32(divisors[axis]))) >> divisors[3 * LEVELS + axis]
            found += Int64(Int32(rest - above * Uint32(matrix.shape[axis]))) * matrix.stride[axis]
            rest = above
        return found * self.item


def buildable(config: MergedConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for a specialisation, with fake arguments."""
    tensors = [strided(types["element"], 3 * LEVELS) for _ in range(2)]
    return Buildable(MergedTranspose(config, types), (*tensors, (Int32(1),) * (2 + 6 * LEVELS)))
