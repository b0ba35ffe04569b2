"""Rung 15: small matrices, squares of elements in registers, no shared memory.

Idea
    A small matrix lies in the L2 cache, and its transpose takes as long as a chain of waits. A thread that reads a
    word of each of 4 rows of 1-byte elements, or of 2 rows of 2-byte elements, exchanges them between its registers
    and writes words: no shared memory, no barrier, no second pass.
Change from the rung before
    No tile. The lanes of a warp stand so that their words fill whole sectors of the target; of the source's sectors
    each is read by the warps side by side.
Data movement
    Every element is read once and written once, a word of 4 bytes, or a larger element, at a time.
Limits
    The time from the launch to the first word that arrives.
Sources
    "CUDA C++ Programming Guide", byte permutation and device memory accesses.
"""

from __future__ import annotations

import cutlass
from cutlass import Uint32, cute

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.words import exchange
from gemmule.kernels.transpose.byte_tile_config import packed_rows

from .spec import SquareConfig


class SquareTranspose:
    """D[i, j, l] = S[i, j, l] for S with neighbours along i, and D with neighbours along j."""

    def __init__(self, config: SquareConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.pack = packed_rows(self.element.width // 8)
        self.word = Uint32 if self.pack > 1 else self.element
        self.lanes_i, self.lanes_j, self.warps = config.lanes, 32 // config.lanes, config.warps
        self.tile_i, self.tile_j = config.tile(self.element.width // 8)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        self.kernel(mS, mD).launch(
            grid=(cute.ceil_div(mS.shape[1], self.tile_j), cute.ceil_div(mS.shape[0], self.tile_i), mS.shape[2]),
            block=(32 * self.warps, 1, 1),
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        tile_j, tile_i, batch = cute.arch.block_idx()
        warp, lane = tid // 32, tid % 32
        i = tile_i * self.tile_i + (warp * self.lanes_i + lane % self.lanes_i) * self.pack
        j = tile_j * self.tile_j + lane // self.lanes_i * self.pack
        gS, gD = (mX[None, None, batch, 0, 0] for mX in (mS, mD))
        sources = [gS.iterator + cute.crd2idx((i, j + r), gS.layout) for r in range(self.pack)]
        overlap_predecessor(tuple(source.toint() for source in sources))
        if i < gS.shape[0] and j < gS.shape[1]:
            square = cute.make_rmem_tensor(cute.make_layout(self.pack), self.word)
            for r in cutlass.range_constexpr(self.pack):
                word = self.word_at(sources[r])
                square[r] = word[0]
            if cutlass.const_expr(self.pack > 1):
                exchange(square)
            for e in cutlass.range_constexpr(self.pack):
                word = self.word_at(gD.iterator + cute.crd2idx((i + e, j), gD.layout))
                word[0] = square[e]

    @cute.jit
    def word_at(self, place: cute.Pointer):
        """Return the word at a place, as a tensor."""
        size = cutlass.const_expr(self.word.width // 8)
        pointer = cute.make_ptr(self.word, place.toint(), place.memspace, assumed_align=size)
        return cute.make_tensor(pointer, cute.make_layout(1))


def buildable(config: SquareConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    name = types["element"]
    vector = packed_rows(cute_type(name).width // 8)
    arguments = tuple(major_tensor(name, unit, batch=3, vector=vector) for unit in (0, 1))
    return Buildable(SquareTranspose(config, types), arguments)
