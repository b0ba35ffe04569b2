"""Small matrices with unaligned rows: a thread gathers the elements of one word.

Idea
    A small matrix of 1- or 2-byte elements is in the L2 cache, and its transpose takes as long as a chain of latencies.
    A thread reads the 4 or 2 elements of one aligned word of the target one by one, each from another row of the
    source, and writes the word: one latency for all its reads, no exchange, no shared memory, no barrier.
Data movement
    Every element is read once and written once. A warp's reads take 4 elements of each sector; the other warps of the
    CTA take the rest, which the L1 cache has. Only the words at both ends of a target's row are written by elements.
Limits
    The time from the launch to the first element; for larger matrices the number of requests.
Sources
    "CUDA C++ Programming Guide", device memory accesses.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import packed, words_at
from gemmule.kernels.transpose.frame import Transpose, device_memory
from gemmule.kernels.transpose.word_tile_config import GatheredConfig


class GatheredTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j."""

    def __init__(self, config: GatheredConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile_i, self.tile_words = config.tile_i(self.item), config.tile_words
        self.lanes_i, self.begin = config.lanes, config.row_alignment
        # Words of a thread, and elements from one to the next.
        self.words, self.step = config.words, 32 // config.lanes * self.pack

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        tile_j, tile_i, batch = cute.arch.block_idx()
        warp, lane = tid // 32, tid % 32
        i = tile_i * self.tile_i + warp * self.lanes_i + lane % self.lanes_i
        gS, gD = (mX[None, None, batch, 0, 0] for mX in (mS, mD))
        last = gS.shape[1] - 1
        row = gD.iterator + cute.crd2idx((i, 0), gD.layout)
        # The first element of the thread's first word; it may come before the row does.
        first = (tile_j * self.tile_words + lane // self.lanes_i) * self.pack
        first -= Int32(row.toint() & (self.begin - 1)) // self.item
        addresses = []
        for k in cutlass.range_constexpr(self.words):
            for e in cutlass.range_constexpr(self.pack):
                # Beyond the ends of a row its last elements are read again, and not written.
                j = cutlass.min(cutlass.max(first + (k * self.step + e), 0), last)
                addresses.append((gS.iterator + cute.crd2idx((i, j), gS.layout)).toint())
        overlap_predecessor(tuple(addresses))
        if i < gS.shape[0]:
            elements = cute.make_rmem_tensor(cute.make_layout((self.pack, self.words)), self.element)
            for k in cutlass.range_constexpr(self.words):
                for e in cutlass.range_constexpr(self.pack):
                    elements[e, k] = device_memory(self.element, addresses[k * self.pack + e])[0]
            for k in cutlass.range_constexpr(self.words):
                j = first + k * self.step
                if j >= 0 and j + self.pack - 1 <= last:
                    words_at(row + j, 1)[0] = Uint32(packed(elements[None, k]))
                else:
                    for e in cutlass.range_constexpr(self.pack):
                        if j + e >= 0 and j + e <= last:
                            gD[i, j + e] = elements[e, k]


buildable = GatheredTranspose.buildable
