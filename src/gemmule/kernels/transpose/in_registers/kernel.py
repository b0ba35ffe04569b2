"""Small matrices with aligned rows: blocks of elements transposed in registers.

Idea
    A small matrix is in the L2 cache, and its transpose takes as long as a chain of latencies. A thread that reads a
    word of each of 4 rows of 1-byte elements, or of 2 rows of 2-byte elements, exchanges them between its registers
    and writes words: no shared memory, no barrier, no second pass.
Data movement
    Every element is read once and written once, in words of 4 bytes. The lanes of a warp write whole sectors of the
    target; each sector of the source is read by several warps.
Limits
    The time from the launch to the first word.
Sources
    "CUDA C++ Programming Guide", byte permutation and device memory accesses.
"""

from __future__ import annotations

import cutlass
from cutlass import Uint32, cute

from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import exchange, words_at
from gemmule.kernels.transpose.frame import Transpose
from gemmule.kernels.transpose.tile_config import WORD
from gemmule.kernels.transpose.word_tile_config import WarpTileConfig


class InRegistersTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j."""

    alignment = WORD

    def __init__(self, config: WarpTileConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.lanes_i, self.tile_i, self.tile_words = config.lanes, config.tile_i(self.item), config.tile_words

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        tile_j, tile_i, batch = cute.arch.block_idx()
        warp, lane = tid // 32, tid % 32
        i = tile_i * self.tile_i + (warp * self.lanes_i + lane % self.lanes_i) * self.pack
        j = tile_j * (self.tile_words * self.pack) + lane // self.lanes_i * self.pack
        gS, gD = (mX[None, None, batch, 0, 0] for mX in (mS, mD))
        sources = [gS.iterator + cute.crd2idx((i, j + r), gS.layout) for r in range(self.pack)]
        overlap_predecessor(tuple(source.toint() for source in sources))
        if i < gS.shape[0] and j < gS.shape[1]:
            block = cute.make_rmem_tensor(cute.make_layout(self.pack), Uint32)
            for r in cutlass.range_constexpr(self.pack):
                block[r] = words_at(sources[r], 1)[0]
            exchange(block)
            for e in cutlass.range_constexpr(self.pack):
                words_at(gD.iterator + cute.crd2idx((i + e, j), gD.layout), 1)[0] = block[e]


buildable = InRegistersTranspose.buildable
