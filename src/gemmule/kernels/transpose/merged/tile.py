"""A tile of rows at any addresses: tables hold the addresses of the source's rows and of the target's."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.sector_tiles import SectorTile
from gemmule.kernels.transpose.tile_config import SECTOR
from gemmule.kernels.transpose.word_reads import ENDS


class MergedTile(SectorTile):
    """Moves tiles as SectorTile does, of which each row's address is in a table; parameters as of SectorTile."""

    @cute.jit
    def allocate(self, smem: SmemAllocator):
        """Return shared memory for the tables of the source's rows and of the target's, and for a tile.

        A row of the source has the address of the word that it begins in, and how many bits within it.
        """
        held = cutlass.const_expr(self.held * self.pack)
        places = smem.allocate_tensor(Int64, cute.make_layout(held), 16)
        lates = smem.allocate_tensor(Uint32, cute.make_layout(held if self.pack > 1 else 4), 16)
        targets = smem.allocate_tensor(Int64, cute.make_layout(self.tile_i), 16)
        tile = smem.allocate_tensor(self.word, cute.make_layout(self.tile_i * self.row_words), 16)
        return (places, lates), targets, tile

    @cute.jit
    def put_source(self, sources, row, address):
        """Store where a row of the source begins."""
        places, lates = sources
        places[row] = self.word_start(address)
        if cutlass.const_expr(self.pack > 1):
            lates[row] = Uint32(Int32(address) & 3) * 8

    @cute.jit
    def read(self, memory, shared, i0, j0):
        """Load the tile at (i0, j0) into shared memory; elements outside the matrix are undefined.

        `memory` has the first and the last address of the matrix in the source, its rows and columns, and whether rows
        are so far apart that what surrounds one of them is in the matrix, but for the first and the last.
        """
        _, (rows, cols), apart = memory
        if cutlass.const_expr(self.pack == 1):
            self.read_words(memory, shared, i0, True)
        else:
            # Beyond the last row it is read again; words at its end may end beyond it.
            inside = i0 + self.tile_i + self.pack <= rows or j0 + self.held * self.pack < cols
            if inside and i0 + j0 > 0 and apart:
                self.read_words(memory, shared, i0, True)
            else:
                self.read_with_ends(memory, shared, i0, j0)

    @cute.jit
    def read_with_ends(self, memory, shared, i0, j0):
        """Load the words that are in the matrix, and the elements of words that are partly outside of it."""
        ((places, lates), _, sT), (_, (rows, cols), _) = shared, memory
        tid, _, _ = cute.arch.thread_idx()
        e, row = tid % (2 * ENDS), (cols - 1 if tid // (2 * ENDS) == 1 else 0) - j0
        i = e - i0 if e < ENDS else rows - i0 - 2 * ENDS + e
        is_here = tid < 4 * ENDS and row >= 0 and row < self.held * self.pack and i >= 0 and i < self.tile_i
        end = self.element(0)
        if is_here:
            # Loaded before the words, and stored after them.
            begin = places[row] + Int64(Int32(lates[row]) // 8)
            end = self.element(device_memory(self.element, begin + Int64(i0 + i) * self.item)[0])
        self.read_words(memory, shared, i0, False)
        cute.arch.sync_threads()
        if is_here:
            index = (i % self.pack * self.columns + i // self.pack) * (self.row_words * self.pack) + row
            self.put(self.element, sT.iterator.toint() + index * self.item, end, True)

    @cute.jit
    def read_words(self, memory, shared, i0, whole: cutlass.Constexpr[bool]):
        """Load the tile into shared memory; `whole` promises that every word is in the matrix.

        Else other words of the matrix are read for those outside, so that no thread branches.
        """
        ((places, lates), _, sT), ((begin, end), (rows, _), _) = shared, memory
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        column, first = warp % self.spans * self.lanes + lane, warp // self.spans
        # Lanes beyond the row's end read one word, which completes the last one within it.
        i = cutlass.min(i0 + column * self.pack, rows - 1 + (self.pack if self.pack > 1 else 0))
        across = self.word_start(Int64(i) * self.item)
        lowest, highest = (begin + 3) & -4, (end & -4) - 4
        for batch in cutlass.range(self.count // self.together, unroll=1):
            at = (first + batch * (self.together * self.step)) * self.pack
            read = cute.make_rmem_tensor(cute.make_layout((self.pack, self.together)), self.word)
            for p in cutlass.range_constexpr(self.together):
                for r in cutlass.range_constexpr(self.pack):
                    place = places[at + (p * self.step * self.pack + r)] + across
                    if cutlass.const_expr(not whole and self.pack > 1):
                        place = cutlass.min(cutlass.max(place, lowest), highest)
                    read[r, p] = self.load(place)
            # Else the compiler saves registers, and waits for some words before it loads the others.
            cute.arch.sync_warp()
            for p in cutlass.range_constexpr(self.together):
                word = first + (batch * self.together + p) * self.step
                late = at + p * self.step * self.pack
                bits = [lates[late + r] for r in range(self.pack if self.pack > 1 else 0)]
                self.store(sT, (lane, column, word), read[None, p], bits)

    @cute.jit
    def load(self, address):
        """Return the word at an address; words of 16 bytes are loaded without a prefetch of their line."""
        if cutlass.const_expr(self.size == 16):
            return device_memory(self.word, address)[0]
        return super().load(address)

    @cute.jit
    def write(self, memory, shared, i0, j0):
        """Write the part of the tile at (i0, j0) that is in the matrix: rows from their first whole sector on."""
        _, (rows, cols), _ = memory
        _, targets, sT = shared
        within = cutlass.min(rows - i0, self.tile_i), cols - j0
        if j0 + self.held * self.pack <= cols:
            self.write_rows(targets, sT, within, True)
        else:
            self.write_rows(targets, sT, within, False)
        if j0 == 0:
            self.write_heads(targets, sT, within[0])

    @cute.jit
    def write_rows(self, targets, sT: cute.Tensor, within, whole: cutlass.Constexpr[bool]):
        """Write rows of the tile; where words are shifted, a thread writes 4 contiguous ones.

        `whole` promises that no row of the tile reaches beyond the end of the matrix's.
        """
        tid, _, _ = cute.arch.thread_idx()
        i = tid // self.abreast
        rows, cols = within
        for p in cutlass.range_constexpr(-(-self.tile_i // self.row_step)):
            if i + p * self.row_step < rows:
                begin = targets[i + p * self.row_step]
                # The thread's first element in the row.
                first = self.elements_ahead(begin) + tid % self.abreast * (self.length * self.pack)
                place = begin + Int64(first * self.item)
                self.write_row(self.row_of(sT, i, p * self.row_step), (first, place), cols, whole)

    @cute.jit
    def write_heads(self, targets, sT: cute.Tensor, rows):
        """Write the part of the matrix's rows before their first whole sector: words, and up to 3 bytes before."""
        tid, _, _ = cute.arch.thread_idx()
        most = cutlass.const_expr(SECTOR // self.size)
        for p in cutlass.range(-(-self.tile_i * most // self.threads), unroll=4):
            i, k = (tid + p * self.threads) // most, (tid + p * self.threads) % most
            if i < rows:
                begin = targets[i]
                self.write_head(sT, begin, i, self.elements_ahead(begin) - (most - k) * self.pack)
