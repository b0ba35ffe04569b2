"""A tile of a matrix whose rows begin anywhere: read in whole words, written in whole sectors.

The L2 cache is slow at putting a sector together that two requests write. Therefore a row of a tile begins where a
sector of the target does, which is another element in every row: the tile holds a sector more of each row than it
writes, and its neighbour reads that too. Where elements are smaller than words, the words of the source begin within
them; a word is cut out of those of two neighbouring lanes.
"""

from __future__ import annotations

import cutlass
from cutlass import Int64, Uint32, Uint64, cute
from cutlass.memory import SmemAllocator

from gemmule.core.sector_tiles import SectorTileConfig

from .sector_rows import SectorRows
from .words import exchange, shifted

# Words that a thread has on their way at most: to wait twice costs more than to have room for fewer threads.
_IN_FLIGHT = 40
# Elements at each end of a row that may share a word with what is outside.
_ENDS = 4


class SectorTile(SectorRows):
    """Moves tiles of S, with neighbours along i, to D, with neighbours along j: D[i, j] = S[i, j].

    Parameters
    ----------
    config : SectorTileConfig
        The tile and its threads.
    types : dict
        ``element``, an opaque type of 1 to 8 bytes.
    """

    def __init__(self, config: SectorTileConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.spans = config.spans
        # Words of a source's row, and of it those of a warp.
        self.columns = config.columns(self.item)
        self.lanes = self.columns // self.spans
        # Words j from one of a thread to its next, all of a thread, and those that it reads together.
        self.step = self.threads // 32 // self.spans
        self.count = self.held // self.step
        fitting = (n for n in range(1, self.count + 1) if self.count % n == 0)
        self.together = max(n for n in fitting if n == 1 or n * self.pack <= _IN_FLIGHT)

    @cute.jit
    def allocate(self, smem: SmemAllocator):
        """Return shared memory for a tile."""
        return smem.allocate_tensor(self.word, cute.make_layout(self.pack * self.stored * self.pitch), 16)

    @cute.jit
    def read(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Bring the tile at (i0, j0) into shared memory; what lies outside the matrix is filled with anything."""
        whole = i0 + self.tile_i + self.pack <= gS.shape[0] and j0 + self.held * self.pack <= gS.shape[1]
        # The matrix's first word may begin before it.
        if whole and (self.pack == 1 or i0 > 0 or (j0 > 0 and gS.stride[1] > 0)):
            self.read_words(gS, sT, i0, j0, True)
        elif cutlass.const_expr(self.pack == 1):
            self.read_words(gS, sT, i0, j0, False)
        else:
            self.read_with_ends(gS, sT, i0, j0)

    @cute.jit
    def read_with_ends(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0):
        """Read words that lie in the matrix, and the elements that share one with what is outside of all of it."""
        tid, _, _ = cute.arch.thread_idx()
        e, row = tid % (2 * _ENDS), (gS.shape[1] - 1 if tid // (2 * _ENDS) == 1 else 0) - j0
        i = e - i0 if e < _ENDS else gS.shape[0] - i0 - 2 * _ENDS + e
        is_here = tid < 4 * _ENDS and row >= 0 and row < self.held * self.pack and i >= 0 and i < self.tile_i
        end = self.element(0)
        if is_here:
            # Asked for before the words, and stored behind them.
            end = self.element(gS[i0 + i, j0 + row])
        self.read_words(gS, sT, i0, j0, False)
        cute.arch.sync_threads()
        if is_here:
            index = (i % self.pack * self.stored + i // self.pack) * (self.pitch * self.pack) + row
            target = cute.make_ptr(self.element, sT.iterator.toint() + index * self.item, cute.AddressSpace.smem)
            cute.make_tensor(target, cute.make_layout(1))[0] = end

    @cute.jit
    def read_words(self, gS: cute.Tensor, sT: cute.Tensor, i0, j0, whole: cutlass.Constexpr[bool]):
        """Bring the tile into shared memory; `whole` promises that every word that is read lies in the matrix.

        Else other words of the matrix are read for those that do not, so that no thread waits for a test.
        """
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // 32, tid % 32
        column, first = warp % self.spans * self.lanes + lane, warp // self.spans
        i, j = i0 + column * self.pack, j0 + first * self.pack
        if cutlass.const_expr(not whole):
            # Lanes beyond the row's end read one word, which completes the last that is within.
            i = cutlass.min(i, gS.shape[0] - 1 + (self.pack if self.pack > 1 else 0))
        line = Int64(gS.stride[1]) * self.item
        begin = (gS.iterator + cute.crd2idx((i, j), gS.layout)).toint()
        # Rows from one word of a thread to its next: they begin at the same place in a word.
        rows = cutlass.const_expr(self.step * self.pack)
        pace = line * rows
        starts = [self.word_start(begin + line * r) for r in range(self.pack)]
        bits = [Uint32((begin + line * r) & 3) * 8 for r in range(self.pack)]
        if cutlass.const_expr(not whole):
            lowest, highest = self.words_within(gS)
        for turn in cutlass.range(self.count // self.together, unroll=1):
            places = [start + pace * (turn * self.together) for start in starts]
            read = cute.make_rmem_tensor(cute.make_layout((self.pack, self.together)), self.word)
            for p in cutlass.range_constexpr(self.together):
                for r in cutlass.range_constexpr(self.pack):
                    place = places[r]
                    if cutlass.const_expr(not whole):
                        # Rows behind the last are the last once more.
                        behind = cutlass.max(j + (turn * self.together + p) * rows + r - (gS.shape[1] - 1), 0)
                        place = self.word_start(place - line * behind)
                        if cutlass.const_expr(self.pack > 1):
                            place = cutlass.min(cutlass.max(place, lowest), highest)
                    read[r, p] = self.load(place)
                    places[r] += pace
            # Else the compiler saves registers, and waits for some words before it asks for the others.
            cute.arch.sync_warp()
            for p in cutlass.range_constexpr(self.together):
                word = first + (turn * self.together + p) * self.step
                if cutlass.const_expr(self.pack == 1):
                    sT[column * self.pitch + word] = read[0, p]
                else:
                    square = cute.make_rmem_tensor(cute.make_layout(self.pack), Uint32)
                    for r in cutlass.range_constexpr(self.pack):
                        square[r] = shifted(read[r, p], cute.arch.shuffle_sync_down(read[r, p], 1), bits[r])
                    exchange(square)
                    if lane < self.lanes:
                        for e in cutlass.range_constexpr(self.pack):
                            sT[(e * self.stored + column) * self.pitch + word] = square[e]

    @cute.jit
    def word_start(self, address):
        """Return the address of the word that holds the byte at an address."""
        return address & -self.size if cutlass.const_expr(self.pack > 1) else address

    @cute.jit
    def words_within(self, gS: cute.Tensor):
        """Return the addresses of the first and the last word of 4 bytes all of which lies between a matrix's ends."""
        begin = gS.iterator.toint()
        far = Int64(gS.stride[1]) * self.item * (gS.shape[1] - 1)
        low, high = begin + cutlass.min(far, Int64(0)), begin + cutlass.max(far, Int64(0))
        return (low + 3) & -4, ((high + Int64(gS.shape[0]) * self.item) & -4) - 4

    @cute.jit
    def load(self, address):
        """Return the word at an address. What is left of its line of 128 bytes, a neighbour reads soon."""
        if cutlass.const_expr(self.size == 8):
            return cute.arch.inline_ptx(
                "ld.global.L2::128B.b64 {$w0}, [{$r0}];", write_only_types=[Uint64], read_only_args=[address]
            )
        return cute.arch.inline_ptx(
            "ld.global.L2::128B.b32 {$w0}, [{$r0}];", write_only_types=[Uint32], read_only_args=[address]
        )
