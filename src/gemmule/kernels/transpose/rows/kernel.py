"""Permutations that keep the last axis: rows are copied whole.

Idea
    If source and target are contiguous along the same axis, nothing is transposed within a row: rows change their
    places. A thread writes vectors of 16 bytes, wherever a row begins. It reads the units that they are made of, as
    large as all rows are aligned to; for units of 1 and 2 bytes it reads the words that hold them, and shifts. Rows
    that follow one another in the target are one run: a vector that has the end of a row and the beginning of the next
    is made of words of both.
Data movement
    Every element is read once and written once, vectors at the ends of runs in words and elements.
Limits
    Device memory.
Sources
    "CUDA C++ Programming Guide", device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.transpose.rows.runs import SHARE_BITS
from gemmule.kernels.transpose.rows.vectors import Place, Vectors
from gemmule.kernels.transpose.tile_config import TileConfig


class RowsTranspose(Vectors):
    """D[i, j, l] = S[i, j, l] for S and D contiguous along j.

    Parameters
    ----------
    config : RowsConfig
        The vectors.
    types : dict
        ``element``, the opaque type of a unit; ``runs``: ``merged`` or ``single`` rows.
    """

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        self.kernel(mS, mD, numbers).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @classmethod
    def buildable(cls, config: TileConfig, types: dict[str, str]) -> Buildable:
        found = super().buildable(config, types)
        return Buildable(found.function, (*found.arguments, (Int32(1),) * 9))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        """Copy vectors of runs.

        `numbers` are the threads of a run, and 2 ** SHARE_BITS divided by them; the runs that a CTA copies at once; the
        matrices of a batch whose CTAs follow one another; the tiles of a matrix, and those along one axis that do; a
        divisor of places in a run, and the vectors from the source's first element to the ends of its memory, as Runs
        says.
        """
        lanes, share, abreast, together, tiles, neighbours, divisor, before, after = numbers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        # Nothing is divided in vain: a division takes as long as a load from the L2 cache.
        tile, batch, l0, l1, l2 = Int32(cta), Int32(0), Int32(0), Int32(0), Int32(0)
        if together > 1:
            tile = cta // together
            batch = cta - tile * together
        if tile >= tiles:
            group = tile // tiles
            tile, batch = tile - group * tiles, batch + group * together
        # Merged rows of one number have a long stride in the source; those of the next run are adjacent to them.
        outer = tile // neighbours
        tile_i, tile_j = outer, tile - outer * neighbours
        if cutlass.const_expr(self.merged):
            tile_i, tile_j = tile_j, tile_i
        l0 = batch
        if batch >= mS.shape[2]:
            outer = batch // mS.shape[2]
            l0, l1 = batch - outer * mS.shape[2], outer
            if cutlass.const_expr(not self.merged):
                l1, l2 = outer % mS.shape[3], outer // mS.shape[3]
        gS, gD = mS[None, None, l0, l1, l2], mD[None, None, l0, l1, l2]
        row = (tid * share) >> SHARE_BITS
        place = (tile_j * lanes + (tid - row * lanes)) * self.vector
        # Threads beyond the last run have none.
        i = tile_i * (abreast * self.passes) + row if row < abreast else gS.shape[0]
        length = mS.shape[1] * self.item
        rows = mS.shape[4] if cutlass.const_expr(self.merged) else Int32(1)
        stride = Int64(mS.stride[4]) * self.item if cutlass.const_expr(self.merged) else Int64(0)
        lines = Int64(gS.stride[0]) * self.item, Int64(gD.stride[0]) * self.item
        begins = gS.iterator.toint() + lines[0] * i, gD.iterator.toint() + lines[1] * i
        steps = lines[0] * abreast, lines[1] * abreast
        begin = mS.iterator.toint()
        memory = begin + Int64(before) * VECTOR_BYTES, begin + Int64(after) * VECTOR_BYTES
        run = length * rows
        thread = Place(place, begins, steps, (rows, length, stride), divisor)
        overlap_predecessor()
        read = cute.make_rmem_tensor(cute.make_layout((self.held, self.passes)), self.word)
        others = cute.make_rmem_tensor(cute.make_layout((self.held, self.passes)), self.word)
        is_outside = Boolean(False)
        for p in cutlass.range_constexpr(self.passes):
            vector = self.vector_of(thread, p)
            if i + abreast * p < gS.shape[0] and vector.offset < run:
                if cutlass.const_expr(self.pack == 1):
                    self.read_units(vector, run, read[None, p])
                elif self.is_inside(vector, memory):
                    self.read_words(vector.first, read[None, p])
                    if vector.rest < self.vector:
                        self.read_words(vector.second, others[None, p])
                else:
                    is_outside = Boolean(True)
        for p in cutlass.range_constexpr(self.passes):
            vector = self.vector_of(thread, p)
            if i + abreast * p < gS.shape[0] and vector.offset < run:
                if cutlass.const_expr(self.pack == 1):
                    self.write(read[None, p], vector, run)
                elif self.is_inside(vector, memory):
                    self.shift(vector.first, read[None, p])
                    if vector.rest < self.vector:
                        self.shift(vector.second, others[None, p])
                        self.merge(read[None, p], others[None, p], vector.rest)
                    self.write(read[None, p], vector, run)
        # The first and the last vector of all memory.
        if is_outside:
            for p in cutlass.range(self.passes, unroll=1):
                vector = self.vector_of(thread, p)
                is_own = not self.is_inside(vector, memory)
                if i + abreast * p < gS.shape[0] and vector.offset < run and is_own:
                    self.copy_elements(vector, run)


buildable = RowsTranspose.buildable
