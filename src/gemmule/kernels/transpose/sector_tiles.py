"""A tile of a matrix with unaligned rows: read in whole words, written in whole sectors.

The L2 cache is slow at merging two writes to one sector. Therefore a row of a tile begins where a sector of the target
does, which is another element in every row: the tile holds a sector more of each row than it writes, and the
adjacent tile reads that too. Where elements are smaller than words, the source's rows begin within a word; a word is
shifted together from those of two adjacent lanes.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.parts.words import exchange, shifted
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import SECTOR, SectorTileConfig
from gemmule.kernels.transpose.word_reads import ENDS, WordReads

# Words that a thread has in flight at most: a second latency costs more than a lower occupancy.
_IN_FLIGHT = 40
# Threads of an SM then.
_RESIDENT_THREADS = 1024


class SectorTile(WordReads):
    """Moves tiles of S, contiguous along i, to D, contiguous along j: D[i, j] = S[i, j].

    Parameters
    ----------
    config : SectorTileConfig
        The tile and its threads.
    types : dict
        ``element``, an opaque type of 1 to 8 bytes.
    """

    def __init__(self, config: SectorTileConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile_i, self.tile_j = config.tile(self.item)
        # Warps along i.
        self.spans = config.spans
        # Words of a source's row, those of a warp; words of a target's row: written, held, and the row stride.
        self.columns = config.columns(self.item)
        self.lanes = self.columns // self.spans
        self.written, self.held = config.write_bytes // self.size, config.held(self.item)
        self.row_words = config.row_words(self.item)
        # Contiguous words that a thread writes, the threads of a row, and the rows of a CTA's at once.
        self.length = 4 if self.pack > 1 else 1
        self.abreast = min(self.written // self.length, 32 // self.length)
        self.row_step = self.threads // self.abreast
        # Words j from one of a thread to its next, all of a thread, and those that it reads together.
        self.step = self.threads // 32 // self.spans
        self.count = self.held // self.step
        fitting = (n for n in range(1, self.count + 1) if self.count % n == 0)
        self.together = max(n for n in fitting if n == 1 or n * self.pack <= _IN_FLIGHT)
        # CTAs of an SM that registers must leave room for, where threads have the most words in flight; else 0.
        self.resident = _RESIDENT_THREADS // self.threads if self.together * self.pack == _IN_FLIGHT else 0

    @cute.jit
    def allocate(self, smem: SmemAllocator):
        """Return shared memory for a tile."""
        return smem.allocate_tensor(self.word, cute.make_layout(self.tile_i * self.row_words), 16)

    @cute.jit
    def read(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Load the tile at (i0, j0) into shared memory; elements outside the matrix are undefined."""
        # Words that hold the ends of a row hold its neighbours' elements, but for the matrix's first row and last one.
        inside, apart = i0 + self.tile_i + self.pack <= gS.shape[0], gS.stride[1] >= 2 * self.pack
        end = j0 + self.held * self.pack + (0 if self.pack == 1 or inside else 1)
        if end <= gS.shape[1] and (self.pack == 1 or (i0 + j0 > 0 and (apart or (inside and i0 > 0)))):
            self.read_words(gS, sT, i0, j0, True)
        elif cutlass.const_expr(self.pack == 1):
            self.read_words(gS, sT, i0, j0, False)
        else:
            self.read_with_ends(gS, sT, i0, j0)

    @cute.jit
    def read_with_ends(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Load the words that are in the matrix, and the elements of words that are partly outside of it."""
        tid, _, _ = cute.arch.thread_idx()
        e, row = tid % (2 * ENDS), (gS.shape[1] - 1 if tid // (2 * ENDS) == 1 else 0) - j0
        i = e - i0 if e < ENDS else gS.shape[0] - i0 - 2 * ENDS + e
        is_here = tid < 4 * ENDS and row >= 0 and row < self.held * self.pack and i >= 0 and i < self.tile_i
        end = self.element(0)
        if is_here:
            # Loaded before the words, and stored after them.
            end = self.element(gS[i0 + i, j0 + row])
        self.read_words(gS, sT, i0, j0, False)
        cute.arch.sync_threads()
        if is_here:
            index = (i % self.pack * self.columns + i // self.pack) * (self.row_words * self.pack) + row
            target = cute.make_ptr(self.element, sT.iterator.toint() + index * self.item, cute.AddressSpace.smem)
            cute.make_tensor(target, cute.make_layout(1))[0] = end

    @cute.jit
    def read_words(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0, whole: cutlass.Constexpr[bool]):
        """Load the tile into shared memory; `whole` promises that all rows and all of their words are in it.

        Else other words of the matrix are read for those outside, so that no thread branches.
        """
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        column, first = warp % self.spans * self.lanes + lane, warp // self.spans
        # Lanes beyond the row's end read one word, which completes the last one within it.
        i = cutlass.min(i0 + column * self.pack, gS.shape[0] - 1 + (self.pack if self.pack > 1 else 0))
        j = j0 + first * self.pack
        line = Int64(gS.stride[1]) * self.item
        begin = (gS.iterator + cute.crd2idx((i, j), gS.layout)).toint()
        # Rows from one word of a thread to its next: they begin at the same byte of a word.
        rows = cutlass.const_expr(self.step * self.pack)
        pace = line * rows
        starts = [self.word_start(begin + line * r) for r in range(self.pack)]
        bits = [Uint32((begin + line * r) & 3) * 8 for r in range(self.pack)]
        if cutlass.const_expr(not whole):
            lowest, highest = self.words_within(gS)
        for batch in cutlass.range(self.count // self.together, unroll=1):
            places = [start + pace * (batch * self.together) for start in starts]
            read = cute.make_rmem_tensor(cute.make_layout((self.pack, self.together)), self.word)
            for p in cutlass.range_constexpr(self.together):
                for r in cutlass.range_constexpr(self.pack):
                    place = places[r]
                    if cutlass.const_expr(not whole):
                        # Beyond the last row it is read again.
                        beyond = cutlass.max(j + (batch * self.together + p) * rows + r - (gS.shape[1] - 1), 0)
                        place = self.word_start(place - line * beyond)
                        if cutlass.const_expr(self.pack > 1):
                            place = cutlass.min(cutlass.max(place, lowest), highest)
                    read[r, p] = self.load(place)
                    places[r] += pace
            # Else the compiler saves registers, and waits for some words before it loads the others.
            cute.arch.sync_warp()
            for p in cutlass.range_constexpr(self.together):
                word = first + (batch * self.together + p) * self.step
                self.store(sT, (lane, column, word), read[None, p], bits)

    @cute.jit
    def store(self, sT: cute.Tensor, place, read: cute.Tensor, bits):
        """Store a thread's word of as many rows as make one to the tile; rows begin so many bits within their words."""
        lane, column, word = place
        if cutlass.const_expr(self.pack == 1):
            sT[column * self.row_words + word] = read[0]
        else:
            block = cute.make_rmem_tensor(cute.make_layout(self.pack), Uint32)
            for r in cutlass.range_constexpr(self.pack):
                block[r] = shifted(read[r], cute.arch.shuffle_sync_down(read[r], 1), bits[r])
            exchange(block)
            if lane < self.lanes:
                for e in cutlass.range_constexpr(self.pack):
                    sT[(e * self.columns + column) * self.row_words + word] = block[e]

    @cute.jit
    def write(self, gD: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Write the part of the tile at (i0, j0) that is in the matrix: rows from their first whole sector on."""
        if j0 + self.held * self.pack <= gD.shape[1]:
            self.write_rows(gD, sT, i0, j0, True)
        else:
            self.write_rows(gD, sT, i0, j0, False)
        if j0 == 0:
            self.write_heads(gD, sT, i0)

    @cute.jit
    def write_rows(self, gD: cute.Tensor, sT: cute.Tensor, i0, j0, whole: cutlass.Constexpr[bool]):
        """Write rows of the tile; where words are shifted, a thread writes 4 contiguous ones.

        `whole` promises that no row of the tile reaches beyond the end of the matrix's.
        """
        tid, _, _ = cute.arch.thread_idx()
        i = tid // self.abreast
        begin = (gD.iterator + cute.crd2idx((i0 + i, j0), gD.layout)).toint()
        line = Int64(gD.stride[0]) * (self.row_step * self.item)
        rows = cutlass.min(gD.shape[0] - i0, self.tile_i)
        # After so many passes a thread's row begins at the same byte of a sector again.
        period = cutlass.const_expr(max(SECTOR // (self.row_step * self.item), 1))
        aheads = [self.elements_ahead(begin + line * p) for p in range(period)]
        # The thread's first element in the row, and the word that holds it.
        firsts = [ahead + tid % self.abreast * (self.length * self.pack) for ahead in aheads]
        places = [begin + line * p + firsts[p] * self.item for p in range(period)]
        for p in cutlass.range_constexpr(-(-self.tile_i // self.row_step)):
            first, place = firsts[p % period], places[p % period]
            places[p % period] = place + line * period
            if i + p * self.row_step < rows:
                self.write_row(self.row_of(sT, i, p * self.row_step), (first, place), gD.shape[1] - j0, whole)

    @cute.jit
    def write_row(self, row: cute.Tensor, begin, cols, whole: cutlass.Constexpr[bool]):
        """Write a thread's words of a row of the tile: `begin` has its first element, and the address of that."""
        first, place = begin
        for q in cutlass.range_constexpr(self.written // (self.length * self.abreast)):
            across = cutlass.const_expr(q * self.abreast * self.length)
            words = self.words_of(row, first, across)
            if cutlass.const_expr(whole):
                cute.autovec_copy(words, device_memory(self.word, place + across * self.size, self.length))
            else:
                self.store_inside(words, place + across * self.size, cols - first - across * self.pack)

    @cute.jit
    def words_of(self, row: cute.Tensor, first, across: cutlass.Constexpr[int]):
        """Return words of a row of the target, from `across` words beyond its first element on."""
        words = cute.make_rmem_tensor(cute.make_layout(self.length), self.word)
        low = row[first // self.pack + across]
        for k in cutlass.range_constexpr(self.length):
            if cutlass.const_expr(self.pack == 1):
                words[k] = low
            else:
                # A word of the target begins in one word of the tile and ends in the next.
                high = row[first // self.pack + (across + k + 1)]
                words[k] = shifted(low, high, Uint32(first % self.pack * (8 * self.item)))
                low = high
        return words

    @cute.jit
    def store_inside(self, words: cute.Tensor, address, left):
        """Write words, or as many of their elements as there are left in the row."""
        if left >= cute.size(words) * self.pack:
            cute.autovec_copy(words, device_memory(self.word, address, cute.size(words)))
        elif cutlass.const_expr(self.pack > 1):
            for k in cutlass.range_constexpr(cute.size(words)):
                rest = left - k * self.pack
                if rest >= self.pack:
                    word = device_memory(self.word, address + k * self.size)
                    word[0] = words[k]
                else:
                    for e in cutlass.range_constexpr(self.pack - 1):
                        if e < rest:
                            last = device_memory(self.element, address + k * self.size + e * self.item)
                            last[0] = self.low_element(words[k] >> (8 * self.item * e))

    @cute.jit
    def write_heads(self, gD: cute.Tensor, sT: cute.Tensor, i0):
        """Write the part of the matrix's rows before their first whole sector: words, and up to 3 bytes before."""
        tid, _, _ = cute.arch.thread_idx()
        most = cutlass.const_expr(SECTOR // self.size)
        for p in cutlass.range(-(-self.tile_i * most // self.threads), unroll=4):
            i, k = (tid + p * self.threads) // most, (tid + p * self.threads) % most
            begin = (gD.iterator + cute.crd2idx((i0 + i, 0), gD.layout)).toint()
            j = self.elements_ahead(begin) - (most - k) * self.pack
            if i < self.tile_i and i0 + i < gD.shape[0]:
                self.write_head(sT, begin, i, j)

    @cute.jit
    def write_head(self, sT: cute.Tensor, begin, i, j):
        """Write the word of row i, at an address, that begins with its element j, or those elements that a row has."""
        if j >= 0:
            word = device_memory(self.word, begin + j * self.item)
            word[0] = self.word_of(sT, i, j)
        elif cutlass.const_expr(self.pack > 1):
            for e in cutlass.range_constexpr(self.pack - 1):
                if e < j + self.pack:
                    element = device_memory(self.element, begin + e * self.item)
                    element[0] = self.low_element(self.row_of(sT, i)[0] >> (8 * self.item * e))

    @cute.jit
    def elements_ahead(self, address):
        """Return the elements of a row at an address that come before the first whole sector."""
        return (-Int32(address & (SECTOR - 1)) & (SECTOR - 1)) // self.item

    @cute.jit
    def row_of(self, sT: cute.Tensor, i, further: cutlass.Constexpr[int] = 0):
        """Return the row `further` below i. Rows of adjacent lanes are contiguous, those of a lane are strided."""
        if cutlass.const_expr(further % self.pack == 0):
            # The address is a sum with a constant.
            start = (i % self.pack * self.columns + i // self.pack) * self.row_words
            start += further // self.pack * self.row_words
        else:
            start = ((i + further) % self.pack * self.columns + (i + further) // self.pack) * self.row_words
        return cute.make_tensor(sT.iterator + start, cute.make_layout(self.row_words))

    @cute.jit
    def word_of(self, sT: cute.Tensor, i, j):
        """Return the word of row i that begins with its element j."""
        row = self.row_of(sT, i)
        low = row[j // self.pack]
        if cutlass.const_expr(self.pack > 1):
            low = shifted(low, row[j // self.pack + 1], Uint32(j % self.pack * (8 * self.item)))
        return low
