"""Rung 16: small matrices whose rows begin anywhere: a thread gathers the elements of one word.

Idea
    A small matrix of 1- or 2-byte elements lies in the L2 cache, and its transpose takes as long as a chain of waits.
    A thread reads the 4 or 2 elements of one aligned word of the target one by one, each from another row of the
    source, and writes the word: one wait for all its reads, no exchange, no shared memory, no barrier.
Change from the rung before
    The source may begin anywhere, for elements are read alone; a row's words begin where the target's words do, which
    is at another element in every row. Only the words at both ends of a row are written by elements.
Data movement
    Every element is read once and written once. A warp's reads take 4 elements of each sector that they ask for; the
    other warps of the CTA stand beside it and take the rest, which the L1 cache has.
Limits
    The time from the launch to the first element that arrives; for larger matrices the number of requests.
Sources
    "CUDA C++ Programming Guide", device memory accesses.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.words import packed, words_at
from gemmule.kernels.transpose.byte_tile_config import packed_rows

from .spec import GatherConfig


class GatheredTranspose:
    """D[i, j, l] = S[i, j, l] for S with neighbours along i, and D with neighbours along j."""

    def __init__(self, config: GatherConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.pack = packed_rows(self.item)
        self.lanes_i, self.warps = config.lanes, config.warps
        self.tile_i, self.tile_words = config.tile
        # Bytes at a multiple of which the first word of a row begins, and elements from a word of a thread to its next.
        self.begin = config.begin
        self.words, self.step = config.words, 32 // config.lanes * self.pack

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        words = cute.ceil_div(mS.shape[1] * self.item + (self.begin - self.item), 4)
        self.kernel(mS, mD).launch(
            grid=(cute.ceil_div(words, self.tile_words), cute.ceil_div(mS.shape[0], self.tile_i), mS.shape[2]),
            block=(32 * self.warps, 1, 1),
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        tile_j, tile_i, batch = cute.arch.block_idx()
        warp, lane = tid // 32, tid % 32
        i = tile_i * self.tile_i + warp * self.lanes_i + lane % self.lanes_i
        gS, gD = (mX[None, None, batch, 0, 0] for mX in (mS, mD))
        last = gS.shape[1] - 1
        line = gD.iterator + cute.crd2idx((i, 0), gD.layout)
        # The first element of the thread's first word; it may come before the row does.
        first = (tile_j * self.tile_words + lane // self.lanes_i) * self.pack - Int32(
            line.toint() & (self.begin - 1)
        ) // self.item
        places = []
        for k in cutlass.range_constexpr(self.words):
            for e in cutlass.range_constexpr(self.pack):
                # Beyond the ends of a row its last elements are read again; nobody writes them.
                j = cutlass.min(cutlass.max(first + (k * self.step + e), 0), last)
                places.append((gS.iterator + cute.crd2idx((i, j), gS.layout)).toint())
        overlap_predecessor(tuple(places))
        if i < gS.shape[0]:
            elements = cute.make_rmem_tensor(cute.make_layout((self.pack, self.words)), self.element)
            for k in cutlass.range_constexpr(self.words):
                for e in cutlass.range_constexpr(self.pack):
                    place = cute.make_ptr(self.element, places[k * self.pack + e], cute.AddressSpace.gmem)
                    elements[e, k] = cute.make_tensor(place, cute.make_layout(1))[0]
            for k in cutlass.range_constexpr(self.words):
                j = first + k * self.step
                if j >= 0 and j + self.pack - 1 <= last:
                    words_at(line + j, 1)[0] = Uint32(packed(elements[None, k]))
                else:
                    for e in cutlass.range_constexpr(self.pack):
                        if j + e >= 0 and j + e <= last:
                            gD[i, j + e] = elements[e, k]


def buildable(config: GatherConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    arguments = tuple(major_tensor(types["element"], unit, batch=3) for unit in (0, 1))
    return Buildable(GatheredTranspose(config, types), arguments)
