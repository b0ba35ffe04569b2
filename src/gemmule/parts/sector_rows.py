"""The way of a tile out of shared memory, in whole sectors of the target, whatever its rows' pitch."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from gemmule.core.byte_tiles import packed_rows
from gemmule.core.sector_tiles import SECTOR, SectorTileConfig

from .tensors import cute_type
from .words import shifted

# Words that a thread reads from shared memory at once, so that they wait together.
_AT_ONCE = 40


class SectorRows:
    """Writes tiles from shared memory to D, with neighbours along j, rows from their first whole sector on.

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
        self.threads = config.threads
        # Elements of a word along j, and bytes of a word.
        self.pack, self.size = packed_rows(self.item), max(self.item, 4)
        self.word = Uint32 if self.pack > 1 else self.element
        # Words of a target's row: written, held, and from row to row. Rows of a word, from its first element's on.
        self.written, self.held = config.write_bytes // self.size, config.held(self.item)
        self.pitch, self.stored = config.pitch(self.item), config.stored(self.item)
        # Words that a thread writes side by side: of those that are put together 4, of others 1.
        self.length = 4 if self.pack > 1 else 1
        # Where words are put together, the next one is needed too.
        self.needed = self.length + 1 if self.pack > 1 else 1
        self.abreast = min(self.written // self.length, 32)
        self.pieces, self.rows_apart = self.written // (self.length * self.abreast), self.threads // self.abreast
        # After so many passes a thread's row begins at the same place in a sector again.
        self.period = max(SECTOR // (self.rows_apart * self.item), 1)

    @cute.jit
    def write(self, gD: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Write what of the tile at (i0, j0) lies in the matrix: rows from their first whole sector on."""
        if i0 + self.tile_i <= gD.shape[0] and j0 + self.held * self.pack <= gD.shape[1]:
            self.write_whole(gD, sT, i0, j0)
        else:
            self.write_edge(gD, sT, i0, j0)
        if j0 == 0:
            self.write_heads(gD, sT, i0)

    @cute.jit
    def write_whole(self, gD: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Write a tile that lies in the matrix. What several rows need is read together, and waited for once."""
        tid, _, _ = cute.arch.thread_idx()
        i = tid // self.abreast
        firsts, places, pace = self.begins(gD, i0 + i, j0)
        full = cutlass.const_expr(self.tile_i // self.rows_apart)
        together = cutlass.const_expr(max(min(full, _AT_ONCE // (self.pieces * self.needed)), 1))
        for begun in cutlass.range_constexpr(0, full, together):
            count = cutlass.const_expr(min(together, full - begun))
            found = cute.make_rmem_tensor(cute.make_layout((self.needed, self.pieces, count)), self.word)
            for n in cutlass.range_constexpr(count):
                self.find(sT, i, begun + n, firsts, found[None, None, n])
            # Else the compiler saves registers, and waits for each row.
            cute.arch.sync_warp()
            for n in cutlass.range_constexpr(count):
                self.write_row(found[None, None, n], begun + n, firsts, places)
                places[(begun + n) % self.period] += pace
        if cutlass.const_expr(full * self.rows_apart < self.tile_i):
            self.write_last(sT, i, full, firsts, places)

    @cute.jit
    def write_last(self, sT: cute.Tensor, i, number: cutlass.Constexpr[int], firsts, places):
        """Write the rows of a last pass, which not every thread has."""
        if i + number * self.rows_apart < self.tile_i:
            found = cute.make_rmem_tensor(cute.make_layout((self.needed, self.pieces)), self.word)
            self.find(sT, i, number, firsts, found)
            self.write_row(found, number, firsts, places)

    @cute.jit
    def write_edge(self, gD: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Write what lies in the matrix of a tile that reaches over its edge."""
        tid, _, _ = cute.arch.thread_idx()
        i = tid // self.abreast
        firsts, places, pace = self.begins(gD, i0 + i, j0)
        rows = cutlass.min(gD.shape[0] - i0, self.tile_i)
        for p in cutlass.range_constexpr(-(-self.tile_i // self.rows_apart)):
            first, place = firsts[p % self.period], places[p % self.period]
            places[p % self.period] = place + pace
            if i + p * self.rows_apart < rows:
                found = cute.make_rmem_tensor(cute.make_layout((self.needed, self.pieces)), self.word)
                self.find(sT, i, p, firsts, found)
                for q in cutlass.range_constexpr(self.pieces):
                    across = cutlass.const_expr(q * self.abreast * self.length)
                    left = gD.shape[1] - j0 - first - across * self.pack
                    self.store_inside(self.aligned(found[None, q], first), place + across * self.size, left)

    def begins(self, gD, i, j0):
        """Return, of the first passes of a thread, its first element in the row and the place of that, and the pace.

        After `period` passes the element is the same again, and the place is further by the pace.
        """
        tid, _, _ = cute.arch.thread_idx()
        begin = (gD.iterator + cute.crd2idx((i, j0), gD.layout)).toint()
        line = Int64(gD.stride[0]) * (self.rows_apart * self.item)
        aheads = [self.elements_ahead(begin + line * p) for p in range(self.period)]
        firsts = [ahead + tid % self.abreast * (self.length * self.pack) for ahead in aheads]
        places = [begin + line * p + first * self.item for p, first in enumerate(firsts)]
        return firsts, places, line * self.period

    @cute.jit
    def find(self, sT: cute.Tensor, i, number: cutlass.Constexpr[int], firsts, found: cute.Tensor):
        """Read the words of the tile that a thread needs for its row of a pass."""
        row = self.row_of(sT, i, number * self.rows_apart)
        for q in cutlass.range_constexpr(self.pieces):
            for k in cutlass.range_constexpr(self.needed):
                found[k, q] = row[firsts[number % self.period] // self.pack + (q * self.abreast * self.length + k)]

    @cute.jit
    def write_row(self, found: cute.Tensor, number: cutlass.Constexpr[int], firsts, places):
        """Write a thread's part of the row of a pass."""
        for q in cutlass.range_constexpr(self.pieces):
            words = self.aligned(found[None, q], firsts[number % self.period])
            self.store(words, places[number % self.period] + q * self.abreast * self.length * self.size)

    @cute.jit
    def aligned(self, found: cute.Tensor, first):
        """Return the words of a row that begin with an element which the first of those that were found holds."""
        words = cute.make_rmem_tensor(cute.make_layout(self.length), self.word)
        for k in cutlass.range_constexpr(self.length):
            if cutlass.const_expr(self.pack == 1):
                words[k] = found[k]
            else:
                # A word of the target begins in one word of the tile and ends in the next.
                words[k] = shifted(found[k], found[k + 1], Uint32(first % self.pack * (8 * self.item)))
        return words

    @cute.jit
    def store_inside(self, words: cute.Tensor, address, left):
        """Write words, or as many of their elements as there are left in the row."""
        if left >= cute.size(words) * self.pack:
            self.store(words, address)
        elif cutlass.const_expr(self.pack > 1):
            for k in cutlass.range_constexpr(cute.size(words)):
                rest = left - k * self.pack
                if rest >= self.pack:
                    word = self.at(self.word, address + k * self.size)
                    word[0] = words[k]
                else:
                    for e in cutlass.range_constexpr(self.pack - 1):
                        if e < rest:
                            last = self.at(self.element, address + k * self.size + e * self.item)
                            last[0] = self.low_element(words[k] >> (8 * self.item * e))

    @cute.jit
    def write_heads(self, gD: cute.Tensor, sT: cute.Tensor, i0):
        """Write what of the matrix's rows comes before their first whole sector: words, and up to 3 bytes before."""
        tid, _, _ = cute.arch.thread_idx()
        most = cutlass.const_expr(SECTOR // self.size)
        for p in cutlass.range(-(-self.tile_i * most // self.threads), unroll=4):
            i, k = (tid + p * self.threads) // most, (tid + p * self.threads) % most
            begin = (gD.iterator + cute.crd2idx((i0 + i, 0), gD.layout)).toint()
            j = self.elements_ahead(begin) - (most - k) * self.pack
            if i < self.tile_i and i0 + i < gD.shape[0]:
                if j >= 0:
                    word = self.at(self.word, begin + j * self.item)
                    word[0] = self.word_of(sT, i, j)
                elif cutlass.const_expr(self.pack > 1):
                    for e in cutlass.range_constexpr(self.pack - 1):
                        if e < j + self.pack:
                            gD[i0 + i, e] = self.low_element(self.row_of(sT, i)[0] >> (8 * self.item * e))

    @cute.jit
    def elements_ahead(self, address):
        """Return the elements of a row at an address that come before the first whole sector."""
        return (-Int32(address & (SECTOR - 1)) & (SECTOR - 1)) // self.item

    @cute.jit
    def row_of(self, sT: cute.Tensor, i, further: cutlass.Constexpr[int] = 0):
        """Return the row `further` below i. Rows of neighbouring lanes lie side by side, those of one far apart."""
        if cutlass.const_expr(further % self.pack == 0):
            # The address is a sum with a constant.
            start = (i % self.pack * self.stored + i // self.pack) * self.pitch + further // self.pack * self.pitch
        else:
            start = ((i + further) % self.pack * self.stored + (i + further) // self.pack) * self.pitch
        return cute.make_tensor(sT.iterator + start, cute.make_layout(self.pitch))

    @cute.jit
    def word_of(self, sT: cute.Tensor, i, j):
        """Return the word of row i that begins with its element j."""
        row = self.row_of(sT, i)
        low = row[j // self.pack]
        if cutlass.const_expr(self.pack > 1):
            low = shifted(low, row[j // self.pack + 1], Uint32(j % self.pack * (8 * self.item)))
        return low

    @cute.jit
    def low_element(self, word):
        """Return the element in the lowest bits of a word."""
        value = word
        if cutlass.const_expr(self.pack > 1):
            value = self.element(word & (2 ** (8 * self.item) - 1))
        return value

    @cute.jit
    def at(self, kind: cutlass.Constexpr, address, count: cutlass.Constexpr[int] = 1):
        """Return device memory as a tensor; its address must be a multiple of its size."""
        size = cutlass.const_expr(count * kind.width // 8)
        place = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=size)
        return cute.make_tensor(place, cute.make_layout(count))

    @cute.jit
    def store(self, words: cute.Tensor, address):
        """Write words to device memory, to a multiple of their size."""
        cute.autovec_copy(words, self.at(self.word, address, cute.size(words)))
