"""Permutations that keep the last axis: rows are copied whole.

Idea
    Where source and target are contiguous along the same axis nothing is transposed within a row: rows change their
    places. A thread writes vectors of 16 bytes, wherever a row begins. It reads the units that they are made of, as
    large as all rows are aligned to; for units of 1 and 2 bytes it reads the words that hold them, and shifts.
Data movement
    Every element is read once and written once, vectors at the ends of rows in words and elements.
Limits
    Device memory.
Sources
    "CUDA C++ Programming Guide", device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import shifted
from gemmule.kernels.transpose.frame import Transpose, device_memory
from gemmule.kernels.transpose.tile_config import SHARE_BITS, WORD, RowsConfig, TileConfig


class RowsTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S and D contiguous along j.

    Parameters
    ----------
    config : RowsConfig
        The vectors.
    types : dict
        ``element``, the opaque type of a unit.
    """

    contiguous = (1, 1)

    def __init__(self, config: RowsConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.passes, self.vector = config.passes, config.vector
        # Bytes of a word; words of a vector, and those that hold its bytes wherever they begin.
        self.size = max(self.item, WORD)
        self.words = self.vector // self.size
        self.held = self.words + (1 if self.pack > 1 else 0)
        # Whether all rows begin and end where vectors do.
        self.is_aligned = self.item == self.vector

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        self.kernel(mS, mD, numbers).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @classmethod
    def buildable(cls, config: TileConfig, types: dict[str, str]) -> Buildable:
        found = super().buildable(config, types)
        return Buildable(found.function, (*found.arguments, (Int32(1),) * 6))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        """Copy vectors of rows.

        `numbers` are the threads of a row, and 2 ** SHARE_BITS divided by them; the rows that a CTA copies at once; the
        matrices of a batch whose CTAs follow one another; the tiles of a matrix, and those along a row.
        """
        lanes, share, abreast, together, tiles, tiles_j = numbers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        length = mS.shape[1] * self.item
        # Nothing is divided in vain: a division takes as long as a load from the L2 cache.
        tile, tile_j, batch, l0, l1, l2 = Int32(cta), Int32(0), Int32(0), Int32(0), Int32(0), Int32(0)
        if together > 1:
            tile = cta // together
            batch = cta - tile * together
        if tile >= tiles:
            group = tile // tiles
            tile, batch = tile - group * tiles, batch + group * together
        if tiles_j > 1:
            tile_i = tile // tiles_j
            tile, tile_j = tile_i, tile - tile_i * tiles_j
        l0 = batch
        if batch >= mS.shape[2]:
            outer = batch // mS.shape[2]
            l0, l1 = batch - outer * mS.shape[2], outer % mS.shape[3]
            l2 = outer // mS.shape[3]
        gS, gD = mS[None, None, l0, l1, l2], mD[None, None, l0, l1, l2]
        row = (tid * share) >> SHARE_BITS
        place = (tile_j * lanes + (tid - row * lanes)) * self.vector
        # Threads beyond the last row have none.
        i = tile * (abreast * self.passes) + row if row < abreast else gS.shape[0]
        lines = Int64(gS.stride[0]) * self.item, Int64(gD.stride[0]) * self.item
        begins = gS.iterator.toint() + lines[0] * i, gD.iterator.toint() + lines[1] * i
        steps = lines[0] * abreast, lines[1] * abreast
        memory = self.memory_of(mS)
        overlap_predecessor()
        read = cute.make_rmem_tensor(cute.make_layout((self.held, self.passes)), self.word)
        for p in cutlass.range_constexpr(self.passes):
            source, target = begins[0] + steps[0] * p, begins[1] + steps[1] * p
            offset = place - Int32(target & (self.vector - 1))
            words = self.words_of(source + offset)
            if i + abreast * p < gS.shape[0] and offset < length and self.is_inside(words, memory):
                for w in cutlass.range_constexpr(self.held):
                    read[w, p] = device_memory(self.word, words + w * self.size)[0]
        for p in cutlass.range_constexpr(self.passes):
            source, target = begins[0] + steps[0] * p, begins[1] + steps[1] * p
            offset = place - Int32(target & (self.vector - 1))
            is_inside = self.is_inside(self.words_of(source + offset), memory)
            if i + abreast * p < gS.shape[0] and offset < length and is_inside:
                vector = cute.make_rmem_tensor(cute.make_layout(self.words), self.word)
                bits = Uint32(Int32(source + offset) & (WORD - 1)) * 8
                for w in cutlass.range_constexpr(self.words):
                    vector[w] = read[w, p]
                    if cutlass.const_expr(self.pack > 1):
                        vector[w] = shifted(read[w, p], read[w + 1, p], bits)
                self.write(vector, target, offset, length)
        # The first and the last vector of all memory.
        for p in cutlass.range(0 if self.is_aligned else self.passes, unroll=1):
            source, target = begins[0] + steps[0] * p, begins[1] + steps[1] * p
            offset = place - Int32(target & (self.vector - 1))
            is_inside = self.is_inside(self.words_of(source + offset), memory)
            if i + abreast * p < gS.shape[0] and offset < length and not is_inside:
                self.copy_elements(source, target, offset, length)

    def words_of(self, address):
        """Return the address of the first word that holds bytes from an address on."""
        return address & -WORD if self.pack > 1 else address

    @cute.jit
    def is_inside(self, words, memory):
        """Return whether the words that hold a vector are within memory."""
        if cutlass.const_expr(self.is_aligned):
            return True
        return words >= memory[0] and words + self.held * self.size <= memory[1]

    @cute.jit
    def memory_of(self, mS: cute.Tensor):
        """Return the addresses at which the memory of all matrices begins and ends."""
        begin = mS.iterator.toint()
        end = begin + mS.shape[1] * self.item
        for axis in cutlass.range_constexpr(5):
            if cutlass.const_expr(axis != 1):
                far = Int64(mS.stride[axis]) * self.item * (mS.shape[axis] - 1)
                begin, end = begin + cutlass.min(far, Int64(0)), end + cutlass.max(far, Int64(0))
        return begin, end

    @cute.jit
    def write(self, vector: cute.Tensor, target, offset, length):
        """Write those elements of a vector that are in a row."""
        if self.is_aligned or (offset >= 0 and offset + self.vector <= length):
            device_memory(self.word, target + offset, self.words).store(vector.load())
        else:
            for w in cutlass.range_constexpr(self.words):
                at = offset + w * self.size
                if at >= 0 and at + self.size <= length:
                    self.put(self.word, target + at, vector[w])
                elif cutlass.const_expr(self.pack > 1):
                    for e in cutlass.range_constexpr(self.pack):
                        if at + e * self.item >= 0 and at + (e + 1) * self.item <= length:
                            element = self.element(vector[w] >> (8 * e * self.item))
                            self.put(self.element, target + at + e * self.item, element)

    @cute.jit
    def copy_elements(self, source, target, offset, length):
        """Copy those elements of a vector that are in a row."""
        count = cutlass.const_expr(self.vector // self.item)
        elements = cute.make_rmem_tensor(cute.make_layout(count), self.element)
        for e in cutlass.range_constexpr(count):
            at = offset + e * self.item
            if at >= 0 and at < length:
                elements[e] = device_memory(self.element, source + at)[0]
        for e in cutlass.range_constexpr(count):
            at = offset + e * self.item
            if at >= 0 and at < length:
                self.put(self.element, target + at, elements[e])


buildable = RowsTranspose.buildable
