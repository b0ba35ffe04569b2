"""A tile of a matrix through shared memory: read along the source's rows, written along the target's.

The tile holds words of 32 bits, or elements if they are larger. A word is contiguous along j, so that elements of 1 or
2 bytes are packed when they are read. Wide rows are aligned to 16 bytes and moved in vectors of 16 bytes; narrow rows
are not: they are read element by element, and written in the target's aligned vectors of 16 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.parts.words import exchange, load_16_bytes, packed, shifted, stream_16_bytes, words_at
from gemmule.kernels.transpose.frame import Words
from gemmule.kernels.transpose.tile_config import LANES, LINE, LONG_ROW, WORD, ByteTileConfig

# Loads of one element each that a thread has in flight, and vectors that it reads from shared memory at once.
_IN_FLIGHT, _AT_ONCE = 32, 8


class ByteTile(Words):
    """Moves tiles of S, contiguous along i, to D, contiguous along j: D[i, j] = S[i, j].

    Parameters
    ----------
    config : ByteTileConfig
        The tile and its threads.
    types : dict
        ``element``, an opaque type; ``rows``, ``wide`` or ``narrow``.
    """

    def __init__(self, config: ByteTileConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.wide = types["rows"] == "wide"
        self.tile_i, self.tile_j = config.tile(self.item)
        # 32-bit units of a word and of the tile's row stride.
        self.unit, self.row_words = max(self.item // 4, 1), config.write_bytes // 4
        # Elements of a vector of 16 bytes, and vectors of a row.
        self.vector = 16 // self.item
        self.vectors_i, self.vectors_j = config.read_bytes // 16, config.write_bytes // 16
        # Lanes of a warp along i, and chunks of a row that are swizzled.
        self.lanes, self.swizzled = min(LANES, self.vectors_i), min(LANES, self.vectors_j)
        # Whether two rows share a line of all banks; for larger elements the swizzle takes more instructions.
        self.paired = self.row_words * WORD == LINE // 2 and self.pack > 1
        # Tiles with long rows are those of large matrices, whose result exceeds the L2 cache.
        self.streams = config.write_bytes >= LONG_ROW
        # CTAs of an SM that registers must leave room for: any number.
        self.resident = 0
        # Passes of all threads over the elements at both ends of the tile's rows, a vector for each row.
        self.passes_ends = -(-self.tile_i * self.vector // self.threads)

    @cute.jit
    def allocate(self, smem: SmemAllocator):
        """Return shared memory for a tile."""
        return smem.allocate_tensor(Uint32, cute.make_layout(self.tile_i * self.row_words), 16).iterator

    @cute.jit
    def read(self, gS: cute.Tensor, sT: cute.Pointer, i0, j0):
        """Load the tile at (i0, j0) into shared memory; elements outside the matrix are undefined."""
        if cutlass.const_expr(self.wide):
            self.read_wide(gS, sT, i0, j0)
        elif self.is_whole(gS, i0, j0):
            self.read_narrow(gS, sT, i0, j0, True)
        else:
            self.read_narrow(gS, sT, i0, j0, False)

    @cute.jit
    def write(self, gD: cute.Tensor, sT: cute.Pointer, i0, j0):
        """Write the part of the tile at (i0, j0) that is in the matrix."""
        if cutlass.const_expr(self.wide):
            self.write_wide(gD, sT, i0, j0)
        elif self.is_whole(gD, i0, j0):
            self.write_narrow(gD, sT, i0, j0)
        else:
            self.write_edge(gD, sT, i0, j0)

    @cute.jit
    def is_whole(self, gX: cute.Tensor, i0, j0):
        """Return whether the whole tile at (i0, j0) is in the matrix."""
        return i0 + self.tile_i <= gX.shape[0] and j0 + self.tile_j <= gX.shape[1]

    @cute.jit
    def read_wide(self, gS: cute.Tensor, sT: cute.Pointer, i0, j0):
        """Load the tile into shared memory, vectors of 16 bytes along i from `pack` rows j, which make a word."""
        tid, _, _ = cute.arch.thread_idx()
        rows, cols = gS.shape[0], gS.shape[1]
        words_j = cutlass.const_expr(self.tile_j // self.pack)
        count = cutlass.const_expr(self.vectors_i * words_j // self.threads)
        read = cute.make_rmem_tensor(cute.make_layout((4, self.pack, count)), Uint32)
        for p in cutlass.range_constexpr(count):
            vector, word = self.place(tid + p * self.threads)
            for r in cutlass.range_constexpr(self.pack):
                # Outside the matrix the last vector is read again, and not written.
                i = cutlass.min(i0 + vector * self.vector, rows - self.vector)
                j = cutlass.min(j0 + word * self.pack + r, cols - 1)
                load_16_bytes(gS.iterator + cute.crd2idx((i, j), gS.layout), read[None, r, p])
        for p in cutlass.range_constexpr(count):
            vector, word = self.place(tid + p * self.threads)
            for v in cutlass.range_constexpr(4 // self.unit):
                # Word v of each row: `pack` elements, contiguous along i.
                block = cute.make_rmem_tensor(cute.make_layout(self.pack), Uint32)
                for r in cutlass.range_constexpr(self.pack):
                    block[r] = read[v, r, p]
                exchange(block)
                for e in cutlass.range_constexpr(self.pack):
                    i = vector * self.vector + v * self.pack + e
                    place = (
                        self.paired_rows(vector, v * self.pack + e, word)
                        if cutlass.const_expr(self.paired)
                        else self.chunked(i, word)
                    )
                    target = words_at(sT + place, self.unit)
                    if cutlass.const_expr(self.unit == 1):
                        target[0] = block[e]
                    else:
                        source = cute.make_rmem_tensor(cute.make_layout(self.unit), Uint32)
                        for u in cutlass.range_constexpr(self.unit):
                            source[u] = read[v * self.unit + u, 0, p]
                        cute.autovec_copy(source, target)

    @cute.jit
    def place(self, number):
        """Return a thread's vector of i and its word of j: a warp takes 8 vectors of 4 words, or 4 of 8."""
        words = cutlass.const_expr(32 // self.lanes)
        vector = number % self.lanes + number // 32 % (self.vectors_i // self.lanes) * self.lanes
        word = number // self.lanes % words + number // (words * self.vectors_i) * words
        return vector, word

    @cute.jit
    def chunked(self, i, word):
        """Return the offset of a word in the tile: 16-byte chunks, swizzled by an XOR with the vector of row i."""
        offset = word * self.unit
        return i * self.row_words + ((offset // 4) ^ (i // self.vector % self.swizzled)) * 4 + offset % 4

    @cute.jit
    def paired_rows(self, vector, further: cutlass.Constexpr[int], word):
        """Return the same for the row `further` below a vector's first one where two rows share a line of all banks.

        The lanes of a row write two chunks: these differ in the lowest bit, and the vectors in those above.
        """
        chunk = (vector * (self.vector * self.vectors_j) + word // 4) ^ (vector % self.swizzled * 2)
        start = (chunk ^ (further % 2 * self.vectors_j)) * 4 + word % 4
        return start + further // 2 * (2 * self.row_words)

    @cute.jit
    def write_wide(self, gD: cute.Tensor, sT: cute.Pointer, i0, j0):
        """Write the tile, vectors of 16 bytes along j."""
        tid, _, _ = cute.arch.thread_idx()
        count = cutlass.const_expr(self.tile_i * self.vectors_j // self.threads)
        together = cutlass.const_expr(min(count, _AT_ONCE))
        for first in cutlass.range_constexpr(0, count, together):
            # All are read before the first is written: one latency for all.
            vectors = cute.make_rmem_tensor(cute.make_layout((4, together)), Uint32)
            for p in cutlass.range_constexpr(together):
                number = tid + (first + p) * self.threads
                i, chunk = number // self.vectors_j, number % self.vectors_j
                if cutlass.const_expr(self.paired):
                    paired = number ^ (number // (self.vector * self.vectors_j) % self.swizzled * 2)
                    source = words_at(sT + paired * 4, 4)
                else:
                    source = words_at(sT + i * self.row_words + (chunk ^ (i // self.vector % self.swizzled)) * 4, 4)
                cute.autovec_copy(source, vectors[None, p])
            for p in cutlass.range_constexpr(together):
                number = tid + (first + p) * self.threads
                i, j = number // self.vectors_j, j0 + number % self.vectors_j * self.vector
                if i0 + i < gD.shape[0] and j < gD.shape[1]:
                    target = gD.iterator + cute.crd2idx((i0 + i, j), gD.layout)
                    if cutlass.const_expr(self.streams):
                        stream_16_bytes(target, vectors[None, p])
                    else:
                        cute.autovec_copy(vectors[None, p], words_at(target, 4))

    @cute.jit
    def read_narrow(self, gS: cute.Tensor, sT: cute.Pointer, i0, j0, whole: cutlass.Constexpr[bool]):
        """Load the tile into shared memory, element by element along i, from `pack` rows j, which make a word.

        `whole` promises that all of it is in the matrix. Else the last element is read again, and not written.
        """
        tid, _, _ = cute.arch.thread_idx()
        # The threads are contiguous along i, and if there are more of them, in several rows of words.
        abreast = cutlass.const_expr(min(self.threads, self.tile_i))
        passes_i, step = cutlass.const_expr(self.tile_i // abreast), cutlass.const_expr(self.threads // abreast)
        i, word = tid % abreast, tid // abreast
        count = cutlass.const_expr(self.tile_j // (self.pack * step) * passes_i)
        together = cutlass.const_expr(min(count, _IN_FLIGHT // self.pack))
        place = gS.iterator + cute.crd2idx((i0 + i, j0 + word * self.pack), gS.layout)
        for first in cutlass.range_constexpr(0, count, together):
            read = cute.make_rmem_tensor(cute.make_layout((self.pack, together)), self.element)
            for p in cutlass.range_constexpr(together):
                ahead_i = cutlass.const_expr((first + p) % passes_i * abreast)
                if cutlass.const_expr(whole):
                    self.read_rows(gS, place + ahead_i, read[None, p])
                else:
                    ahead_word = cutlass.const_expr((first + p) // passes_i * step)
                    j = j0 + (word + ahead_word) * self.pack
                    self.read_inside(gS, i0 + i + ahead_i, j, read[None, p])
                if cutlass.const_expr((first + p + 1) % passes_i == 0):
                    place += gS.stride[1] * (step * self.pack)
            for p in cutlass.range_constexpr(together):
                ahead_i = cutlass.const_expr((first + p) % passes_i * abreast)
                ahead_word = cutlass.const_expr((first + p) // passes_i * step)
                target = self.word_at(sT, i, word, ahead_i, ahead_word)
                target[0] = packed(read[None, p]) if cutlass.const_expr(self.pack > 1) else read[0, p]

    @cute.jit
    def read_rows(self, gS: cute.Tensor, row: cute.Pointer, read: cute.Tensor):
        """Read an element of each row of a word; the first one is at `row`."""
        for r in cutlass.range_constexpr(self.pack):
            read[r] = cute.make_tensor(row, cute.make_layout(1))[0]
            row += gS.stride[1]

    @cute.jit
    def read_inside(self, gS: cute.Tensor, i, j, read: cute.Tensor):
        """Read an element of each row of a word, the first at (i, j), the last again beyond the edge."""
        for r in cutlass.range_constexpr(self.pack):
            read[r] = gS[cutlass.min(i, gS.shape[0] - 1), cutlass.min(j + r, gS.shape[1] - 1)]

    @cute.jit
    def word_at(
        self, sT: cute.Pointer, i, word, ahead_i: cutlass.Constexpr[int] = 0, ahead_word: cutlass.Constexpr[int] = 0
    ):
        """Return word ``word + ahead_word`` of row ``i + ahead_i``, or an element if larger: swizzled by an XOR with i.

        The summands have no bit in common, so that the sums are exclusive ors, and the address is one instruction.
        """
        row = cutlass.const_expr(self.tile_j // self.pack)
        banks = cutlass.const_expr(min(32 // self.unit, row))
        start = cute.make_ptr(self.word, sT.toint(), sT.memspace, assumed_align=16)
        place = (word ^ (i * row + i % banks)) ^ (ahead_word ^ (ahead_i % banks))
        return cute.make_tensor(start + (place + ahead_i * row), cute.make_layout(1))

    @cute.jit
    def write_narrow(self, gD: cute.Tensor, sT: cute.Pointer, i0, j0):
        """Write a tile that is in the matrix: aligned vectors of 16 bytes along j, then the ends of its rows."""
        tid, _, _ = cute.arch.thread_idx()
        words, step = cutlass.const_expr(self.tile_j // self.pack), cutlass.const_expr(self.threads // self.vectors_j)
        length = cutlass.const_expr(words // self.vectors_j)
        bits = cutlass.const_expr(8 * self.item)
        i, chunk = tid // self.vectors_j, tid % self.vectors_j
        line = gD.iterator + cute.crd2idx((i0 + i, j0), gD.layout)
        for p in cutlass.range_constexpr(self.tile_i // step):
            ahead = self.elements_ahead(line)
            if chunk + 1 < self.vectors_j or ahead == 0:
                first = chunk * length + ahead // self.pack
                vector = cute.make_rmem_tensor(cute.make_layout(length), self.word)
                low = self.word_at(sT, i, first, p * step)[0]
                for k in cutlass.range_constexpr(length):
                    if cutlass.const_expr(self.pack == 1):
                        vector[k] = self.word_at(sT, i, first + k, p * step)[0]
                    else:
                        # A word of the target begins in one word of the tile and ends in the next.
                        high = self.word_at(sT, i, (first + k + 1) % words, p * step)[0]
                        vector[k] = shifted(low, high, Uint32(ahead % self.pack * bits))
                        low = high
                place = line + (chunk * self.vector + ahead)
                pointer = cute.make_ptr(self.word, place.toint(), place.memspace, assumed_align=16)
                cute.autovec_copy(vector, cute.make_tensor(pointer, cute.make_layout(length)))
            line += gD.stride[0] * step
        self.write_ends(gD, sT, i0, j0)

    @cute.jit
    def elements_ahead(self, line: cute.Pointer):
        """Return the elements of a row that come before the first multiple of 16 bytes."""
        return (-cutlass.Int32(line.toint() & 15) & 15) // self.item

    @cute.jit
    def write_ends(self, gD: cute.Tensor, sT: cute.Pointer, i0, j0):
        """Write the elements at both ends of the tile's rows that make no whole vector, if any."""
        tid, _, _ = cute.arch.thread_idx()
        for p in cutlass.range(self.passes_ends):
            number = tid + p * self.threads
            i, e = number // self.vector, number % self.vector
            if number < self.tile_i * self.vector:
                line = gD.iterator + cute.crd2idx((i0 + i, j0), gD.layout)
                ahead = self.elements_ahead(line)
                j = e if e < ahead else self.tile_j - self.vector + e
                if ahead != 0:
                    cute.make_tensor(line + j, cute.make_layout(1))[0] = self.element_of(sT, i, j)

    @cute.jit
    def element_of(self, sT: cute.Pointer, i, j):
        """Return an element of the tile."""
        value = self.word_at(sT, i, j // self.pack)[0]
        if cutlass.const_expr(self.pack > 1):
            value = self.element((value >> (j % self.pack * (8 * self.item))) & (2 ** (8 * self.item) - 1))
        return value

    @cute.jit
    def write_edge(self, gD: cute.Tensor, sT: cute.Pointer, i0, j0):
        """Write a tile that reaches over the matrix's edge, element by element along j."""
        tid, _, _ = cute.arch.thread_idx()
        for p in cutlass.range(self.tile_i * self.tile_j // self.threads):
            number = tid + p * self.threads
            i, j = number // self.tile_j, number % self.tile_j
            if i0 + i < gD.shape[0] and j0 + j < gD.shape[1]:
                gD[i0 + i, j0 + j] = self.element_of(sT, i, j)
