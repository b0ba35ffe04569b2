"""A tile of a matrix whose rows begin anywhere: read in whole words, written in whole sectors.

A sector of the target that two CTAs wrote would be put together in the L2 cache. Therefore a tile's row begins at the
target's next multiple of 32 bytes, another element in every row: the tile holds a sector more of each row than it
writes, and reads what it needs for that, which its neighbour reads too. Where elements are smaller than words, the
words of the source begin within them; a word is cut out of a lane's word and the next lane's.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.byte_tiles import packed_rows
from gemmule.core.sector_tiles import SECTOR, SectorTileConfig

from .tensors import cute_type
from .words import exchange, shifted

# Loads of a word each that a thread has on their way.
_IN_FLIGHT = 24


class SectorTile:
    """Moves tiles of S, with neighbours along i, to D, with neighbours along j: D[i, j] = S[i, j].

    Parameters
    ----------
    config : SectorTileConfig
        The tile and its threads.
    types : dict
        ``element``, an opaque type of 1 to 8 bytes.
    """

    def __init__(self, config: SectorTileConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.tile_i, self.tile_j = config.tile(self.item)
        self.threads, self.spans = config.threads, config.spans
        self.align = config.align
        # Elements of a word along j, and bytes of a word.
        self.pack, self.size = packed_rows(self.item), max(self.item, 4)
        self.word = Uint32 if self.pack > 1 else self.element
        # Words of a source's row, of a warp's part of it, and of a target's row: written, held, from row to row.
        self.columns = config.columns(self.item)
        self.lanes = self.columns // self.spans
        self.written, self.held, self.pitch = config.write_bytes // self.size, config.held(self.item), config.pitch(self.item)

    @cute.jit
    def allocate(self, smem: SmemAllocator):
        """Return shared memory for a tile."""
        layout = cute.make_layout(self.tile_i * self.pitch)
        return smem.allocate_tensor(self.word, layout, 16)

    @cute.jit
    def read(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Bring the tile at (i0, j0) into shared memory, with a sector more of j; what is outside the matrix is 0."""
        # A word may begin before its first element, and a warp reads one more than it keeps.
        inside = i0 + self.tile_i + self.pack <= gS.shape[0] and j0 + self.held * self.pack <= gS.shape[1]
        if inside and (i0 > 0 or self.pack == 1):
            self.read_words(gS, sT, i0, j0, True)
        else:
            self.read_words(gS, sT, i0, j0, False)
            if cutlass.const_expr(self.pack > 1):
                cute.arch.sync_threads()
                self.read_ends(gS, sT, i0, j0)

    @cute.jit
    def read_words(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0, whole: cutlass.Constexpr[bool]):
        """Bring the tile into shared memory; `whole` promises that every word that is read lies in the matrix."""
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        column, first = warp % self.spans * self.lanes + lane, warp // self.spans
        step = cutlass.const_expr(self.threads // 32 // self.spans)
        count = cutlass.const_expr(self.held // step)
        together = cutlass.const_expr(min(count, max(_IN_FLIGHT // self.pack, 1)))
        i, j = i0 + column * self.pack, j0 + first * self.pack
        start = (gS.iterator + cute.crd2idx((i, j), gS.layout)).toint()
        line = Int64(gS.stride[1]) * self.item
        for begin in cutlass.range_constexpr(0, count, together):
            number = cutlass.const_expr(min(together, count - begin))
            read = cute.make_rmem_tensor(cute.make_layout((self.pack, number)), self.word)
            for p in cutlass.range_constexpr(number):
                for r in cutlass.range_constexpr(self.pack):
                    ahead = cutlass.const_expr((begin + p) * step * self.pack + r)
                    if cutlass.const_expr(whole):
                        read[r, p] = self.load(start + line * ahead)
                    else:
                        length = gS.shape[0] if j + ahead < gS.shape[1] else 0
                        read[r, p] = self.load_inside(start + line * ahead, i, length)
            for p in cutlass.range_constexpr(number):
                word = first + (begin + p) * step
                if cutlass.const_expr(self.pack == 1):
                    sT[column * self.pitch + word] = read[0, p]
                else:
                    square = cute.make_rmem_tensor(cute.make_layout(self.pack), Uint32)
                    for r in cutlass.range_constexpr(self.pack):
                        ahead = cutlass.const_expr((begin + p) * step * self.pack + r)
                        bits = Uint32((start + line * ahead) & 3) * 8
                        square[r] = shifted(read[r, p], cute.arch.shuffle_sync_down(read[r, p], 1), bits)
                    exchange(square)
                    if lane < self.lanes:
                        for e in cutlass.range_constexpr(self.pack):
                            sT[(e * self.columns + column) * self.pitch + word] = square[e]

    @cute.jit
    def load(self, address):
        """Return the word that holds the byte at an address."""
        place = cute.make_ptr(self.word, address & -self.size if self.pack > 1 else address, cute.AddressSpace.gmem, assumed_align=self.size)
        return cute.make_tensor(place, cute.make_layout(1))[0]

    @cute.jit
    def load_inside(self, address, i, length):
        """Return the word that holds element i of a row of `length` elements, at an address; 0 if it is not all inside."""
        first = i - Int32(address & (self.size - 1)) // self.item if self.pack > 1 else i
        value = self.word(0)
        if first >= 0 and first + self.pack <= length:
            value = self.word(self.load(address))
        return value

    @cute.jit
    def read_ends(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Bring the elements into the tile that share a word with what is outside the matrix: at most 3 at each end."""
        tid, _, _ = cute.arch.thread_idx()
        for p in cutlass.range(-(-8 * self.held * self.pack // self.threads)):
            number = tid + p * self.threads
            row, e = number // 8, number % 8
            i = e if e < 4 else gS.shape[0] - 8 + e
            if row < self.held * self.pack and j0 + row < gS.shape[1] and i >= i0 and i < i0 + self.tile_i and i < gS.shape[0]:
                place = gS.iterator + cute.crd2idx((i, j0 + row), gS.layout)
                i -= i0
                index = ((i % self.pack * self.columns + i // self.pack) * self.pitch) * self.pack + row
                target = cute.make_ptr(self.element, sT.iterator.toint() + index * self.item, cute.AddressSpace.smem)
                cute.make_tensor(target, cute.make_layout(1))[0] = cute.make_tensor(place, cute.make_layout(1))[0]

    @cute.jit
    def write(self, gD: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Write what of the tile at (i0, j0) lies in the matrix: rows from their first multiple of 32 bytes on."""
        inside = i0 + self.tile_i <= gD.shape[0] and j0 + self.held * self.pack <= gD.shape[1]
        if inside:
            self.write_words(gD, sT, i0, j0, True)
        else:
            self.write_words(gD, sT, i0, j0, False)
        if j0 == 0:
            self.write_heads(gD, sT, i0)

    @cute.jit
    def write_words(self, gD: cute.Tensor, sT: cute.Tensor, i0, j0, whole: cutlass.Constexpr[bool]):
        """Write the tile's rows; `whole` promises that all of them lie in the matrix."""
        tid, _, _ = cute.arch.thread_idx()
        abreast = cutlass.const_expr(min(self.written, 32))
        step = cutlass.const_expr(self.threads // abreast)
        word = tid % abreast
        start = (gD.iterator + cute.crd2idx((i0 + tid // abreast, j0), gD.layout)).toint()
        line = Int64(gD.stride[0]) * (step * self.item)
        for p in cutlass.range(-(-self.tile_i // step), unroll=4):
            i = tid // abreast + p * step
            place = start + line * p
            ahead = self.elements_ahead(place)
            if i < self.tile_i and (whole or i0 + i < gD.shape[0]):
                for q in cutlass.range_constexpr(self.written // abreast):
                    j = ahead + (word + q * abreast) * self.pack
                    value = self.word_of(sT, i, j)
                    if whole or j0 + j + self.pack <= gD.shape[1]:
                        pointer = cute.make_ptr(self.word, place + j * self.item, cute.AddressSpace.gmem, assumed_align=self.size)
                        cute.make_tensor(pointer, cute.make_layout(1))[0] = value
                    elif cutlass.const_expr(self.pack > 1):
                        for e in cutlass.range_constexpr(self.pack - 1):
                            if j0 + j + e < gD.shape[1]:
                                gD[i0 + i, j0 + j + e] = self.element((value >> (8 * self.item * e)) & (2 ** (8 * self.item) - 1))

    @cute.jit
    def write_heads(self, gD: cute.Tensor, sT: cute.Tensor, i0):
        """Write the elements of rows that come before their first multiple of 32 bytes."""
        tid, _, _ = cute.arch.thread_idx()
        most = cutlass.const_expr(self.align // self.item)
        for p in cutlass.range(-(-self.tile_i * most // self.threads)):
            number = tid + p * self.threads
            i, j = number // most, number % most
            if i < self.tile_i and i0 + i < gD.shape[0] and j < gD.shape[1]:
                place = gD.iterator + cute.crd2idx((i0 + i, j), gD.layout)
                if j < self.elements_ahead((gD.iterator + cute.crd2idx((i0 + i, 0), gD.layout)).toint()):
                    value = self.word_of(sT, i, j)
                    if cutlass.const_expr(self.pack > 1):
                        value = self.element(value & (2 ** (8 * self.item) - 1))
                    cute.make_tensor(place, cute.make_layout(1))[0] = value

    @cute.jit
    def elements_ahead(self, address):
        """Return the elements of a row at an address that come before the first multiple of 32 bytes."""
        return (-Int32(address & (self.align - 1)) & (self.align - 1)) // self.item

    @cute.jit
    def word_of(self, sT: cute.Tensor, i, j):
        """Return the word of row i that begins with its element j."""
        row = (i % self.pack * self.columns + i // self.pack) * self.pitch
        low = sT[row + j // self.pack]
        if cutlass.const_expr(self.pack > 1):
            # It begins in one word of the tile and ends in the next.
            low = shifted(low, sT[row + j // self.pack + 1], Uint32(j % self.pack * (8 * self.item)))
        return low
