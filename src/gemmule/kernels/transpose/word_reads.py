"""Reads of rows that begin within words: by the aligned words that hold their elements."""

from __future__ import annotations

import cutlass
from cutlass import Int64, Uint32, Uint64, cute

from gemmule.kernels.transpose.frame import Words
from gemmule.kernels.transpose.tile_config import TileConfig

#: Elements at each end of a row that may share a word with what is outside.
ENDS = 4


class WordReads(Words):
    """Base of tiles that read words of 4 bytes, or elements if larger; parameters as of Words."""

    def __init__(self, config: TileConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        # Bytes of a word.
        self.size = max(self.item, 4)
        self.load_ptx = f"ld.global.L2::128B.b{8 * self.size} {{$w0}}, [{{$r0}}];"
        self.loaded = Uint64 if self.size == 8 else Uint32

    @cute.jit
    def word_start(self, address):
        """Return the address of the word that holds the byte at an address."""
        return address & -self.size if cutlass.const_expr(self.pack > 1) else address

    @cute.jit
    def words_within(self, gS: cute.Tensor):
        """Return the addresses of the first and the last word of 4 bytes that is within a matrix's memory."""
        begin = gS.iterator.toint()
        far = Int64(gS.stride[1]) * self.item * (gS.shape[1] - 1)
        low, high = begin + cutlass.min(far, Int64(0)), begin + cutlass.max(far, Int64(0))
        return (low + 3) & -4, ((high + Int64(gS.shape[0]) * self.item) & -4) - 4

    @cute.jit
    def load(self, address):
        """Return the word at an address, and prefetch its line of 128 bytes, which an adjacent CTA reads soon."""
        return cute.arch.inline_ptx(self.load_ptx, write_only_types=[self.loaded], read_only_args=[address])

    @cute.jit
    def low_element(self, word):
        """Return the element in the lowest bits of a word."""
        return self.element(word & (2 ** (8 * self.item) - 1))
