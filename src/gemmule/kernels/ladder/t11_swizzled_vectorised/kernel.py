"""Rung 11: vectors of 16 bytes on both sides, through a swizzled tile.

Idea
    One instruction moves 16 bytes instead of 4: a quarter of the instructions, of the addresses and of the tests, and
    four times as many bytes on their way from a thread.
Change from the rung before
    Vectors of 4 elements, a tile of 64 x 64, whose rows are 256 bytes. Padding would misalign the vectors in shared
    memory; instead the 16-byte chunks of a row are permuted: chunk c of row i is stored in place c XOR i / 4.
Data movement
    A warp reads 4 rows of 128 bytes and writes 2 of 256. Its 4 writes to shared memory scatter a vector along i over
    rows i, one element each: 8 vectors meet 8 chunks, 4 rows j the 4 elements of a chunk, so all 32 banks. It reads
    whole chunks, 8 lanes to a pass.
Limits
    Device memory; rows must begin and end at multiples of 16 bytes.
Sources
    "CUDA C++ Programming Guide", shared memory: banks of wide accesses.
"""

from __future__ import annotations

import cutlass
from cutlass import Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.ladder.block_kernel import BlockKernel
from gemmule.kernels.ladder.transpose_rung_config import LANES_I, LANES_J, VECTOR, VectorConfig
from gemmule.kernels.parts.words import words_at


class SwizzledVectorised(BlockKernel):
    """D[i, j] = S[i, j] for elements of 4 bytes, S contiguous along i, D along j."""

    vector = VECTOR

    def __init__(self, config: VectorConfig) -> None:
        super().__init__(config)
        self.side, self.threads = config.side, config.block_x
        self.vectors = self.side // VECTOR

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tid, _, _ = cute.arch.thread_idx()
        block_i, block_j, _ = cute.arch.block_idx()
        i0, j0 = block_i * self.side, block_j * self.side
        sT = SmemAllocator().allocate_tensor(Uint32, cute.make_layout(self.side * self.side), 16)
        count = cutlass.const_expr(self.side * self.vectors // self.threads)
        read = cute.make_rmem_tensor(cute.make_layout((VECTOR, count)), Uint32)
        for p in cutlass.range_constexpr(count):
            i, j = self.place(tid + p * self.threads)
            # Outside the matrix the last vector is read again; nobody writes it.
            inside = (cutlass.min(i0 + i, mS.shape[0] - VECTOR), cutlass.min(j0 + j, mS.shape[1] - 1))
            cute.autovec_copy(words_at(mS.iterator + cute.crd2idx(inside, mS.layout), VECTOR), read[None, p])
        for p in cutlass.range_constexpr(count):
            i, j = self.place(tid + p * self.threads)
            for v in cutlass.range_constexpr(VECTOR):
                sT[self.chunk(i + v, j // VECTOR) + j % VECTOR] = read[v, p]
        cute.arch.sync_threads()
        for p in cutlass.range_constexpr(count):
            number = tid + p * self.threads
            i, j = number // self.vectors, number % self.vectors * VECTOR
            if i0 + i < mD.shape[0] and j0 + j < mD.shape[1]:
                target = words_at(mD.iterator + cute.crd2idx((i0 + i, j0 + j), mD.layout), VECTOR)
                cute.autovec_copy(words_at(sT.iterator + self.chunk(i, j // VECTOR), VECTOR), target)

    @cute.jit
    def place(self, number):
        """Return where a vector of the source begins: a warp takes 8 of them along i, in 4 rows j."""
        i = number % LANES_I + number // 32 % (self.vectors // LANES_I) * LANES_I
        j = number // LANES_I % LANES_J + number // (LANES_J * self.vectors) * LANES_J
        return i * VECTOR, j

    @cute.jit
    def chunk(self, i, number):
        """Return the place of a 16-byte chunk of row i in shared memory."""
        return i * self.side + (number ^ (i // VECTOR % LANES_I)) * VECTOR


buildable = SwizzledVectorised.buildable
