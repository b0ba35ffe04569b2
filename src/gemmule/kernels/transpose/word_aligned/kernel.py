"""Small matrices with unaligned rows, in shared memory as the aligned words that hold them.

Idea
    Elements of 1 or 2 bytes that a thread reads alone are many requests, and shifting words into place is many
    instructions. Here the aligned words that hold a row of the source are copied to shared memory unchanged. Each row
    begins at another byte of its first word, which is known, so that the elements of a word of the target are gathered
    there one by one: shared memory reads single bytes as fast as words.
Data movement
    Every element is written once. A tile reads a word more than it needs of each row of the source, and, since a row of
    the target begins anywhere in a word or a sector, a few more rows than it writes elements of a row.
Limits
    The time from the launch to the first word, a barrier, and the reads from shared memory.
Sources
    "CUDA C++ Programming Guide", shared memory: words of 32 banks.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import packed, words_at
from gemmule.kernels.transpose.frame import Transpose, device_memory
from gemmule.kernels.transpose.word_tile_config import WordAlignedConfig


class WordAlignedTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j."""

    def __init__(self, config: WordAlignedConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.lanes, self.words, self.begin = config.lanes, config.words, config.begin
        self.tile_i = config.tile_i(self.item)
        # Rows of the source from one word of a thread to its next, and rows of the target.
        self.step_j, self.step_i = self.threads // self.lanes, self.threads // self.words
        # Strides of rows and classes, rows of the source in the tile, and those that a thread reads a word of.
        self.row_words, self.class_words = config.row_words, config.class_words(self.item)
        self.rows = self.pack * config.class_rows(self.item)
        self.count = -(-self.rows // self.step_j)

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tile_j, tile_i, batch = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        gS, gD = (mX[None, None, batch, 0, 0] for mX in (mS, mD))
        tile = SmemAllocator().allocate_tensor(Uint32, cute.make_layout(self.pack * self.class_words), 16)
        i0, last = tile_i * self.tile_i, gS.shape[1] - 1
        # The first row of the tile, which may be negative.
        j0 = tile_j * (self.words * self.pack) - (self.begin // self.item - 1)

        # Bytes from the word in which the matrix begins to the tile's first element of a row, and the row stride.
        origin = gS.iterator.toint() & -4
        head, line = Int32(gS.iterator.toint() - origin), Int32(gS.stride[1]) * self.item
        # The ends of the matrix's memory, and the first and the last word that is within it.
        begin, end = head + cutlass.min(line * last, 0), head + cutlass.max(line * last, 0) + gS.shape[0] * self.item
        lowest, highest = (begin + 3) & -4, (end & -4) - 4
        head += i0 * self.item

        row, lane = tid // self.lanes, tid % self.lanes
        addresses = []
        for p in cutlass.range_constexpr(self.count):
            # Outside of the matrix its first or last row is read again, and not written.
            j = cutlass.min(cutlass.max(j0 + row + p * self.step_j, 0), last)
            wanted = ((head + line * j) & -4) + lane * 4
            addresses.append(origin + cutlass.min(cutlass.max(wanted, lowest), highest))
        # A word that is partly outside is assembled from its elements by the thread that would read it.
        is_first = i0 + lane == 0
        far = (0 if is_first else last) if line > 0 else (last if is_first else 0)
        shared, held = (begin if is_first else end) & -4, far - j0
        at_end = shared == ((head + line * far) & -4) + lane * 4
        at_end = at_end & (held >= 0) & (held < self.rows) & (held % self.step_j == row)

        overlap_predecessor(tuple(addresses))
        ends = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
        ends.fill(self.element(0))
        if at_end:
            for e in cutlass.range_constexpr(self.pack):
                byte = shared + e * self.item
                if byte >= begin and byte < end:
                    ends[e] = device_memory(self.element, origin + byte)[0]
        found = cute.make_rmem_tensor(cute.make_layout(self.count), Uint32)
        for p in cutlass.range_constexpr(self.count):
            found[p] = device_memory(Uint32, addresses[p])[0]

        i, word = tid // self.words, tid % self.words
        target = gD.iterator + cute.crd2idx((i0 + i, 0), gD.layout)
        # All rows of the target that one thread writes begin at the same byte of a word.
        first = word * self.pack + (self.begin // self.item - 1) - Int32(target.toint() & (self.begin - 1)) // self.item
        # Shared memory addresses of a word's elements: each row begins at another byte of its first word.
        sources = []
        for e in cutlass.range_constexpr(self.pack):
            begins = (head + line * (j0 + first + e)) & 3
            start = 4 * self.start(first + e) + begins + i * self.item
            sources.append(tile.iterator.toint() + start)

        for p in cutlass.range_constexpr(self.count):
            self.put(tile, row + p * self.step_j, lane, found[p], (p + 1) * self.step_j <= self.rows)
        if at_end:
            self.put(tile, held, lane, packed(ends), True)
        cute.arch.sync_threads()
        self.write(gD, target, sources, i, i0, j0 + first)

    @cute.jit
    def start(self, row):
        """Return the first word of a row of the tile; rows that one warp gathers from are contiguous."""
        return row % self.pack * self.class_words + row // self.pack * self.row_words

    @cute.jit
    def put(self, tile: cute.Tensor, row, lane, word, is_held: cutlass.Constexpr[bool]):
        """Store a word of a row of the tile; `is_held` promises that the tile has the row."""
        if is_held or row < self.rows:
            tile[self.start(row) + lane] = word

    @cute.jit
    def write(self, gD: cute.Tensor, target: cute.Pointer, sources, i, i0, j):
        """Gather words of the target's rows from their elements, and write them."""
        within, last = cutlass.min(gD.shape[0] - i0, self.tile_i), gD.shape[1] - 1
        place = target + j
        for q in cutlass.range_constexpr(-(-self.tile_i // self.step_i)):
            if i + q * self.step_i < within:
                elements = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
                for e in cutlass.range_constexpr(self.pack):
                    source = sources[e] + q * self.step_i * self.item
                    pointer = cute.make_ptr(self.element, source, cute.AddressSpace.smem)
                    elements[e] = cute.make_tensor(pointer, cute.make_layout(1))[0]
                if j >= 0 and j + self.pack - 1 <= last:
                    words_at(place, 1)[0] = Uint32(packed(elements))
                else:
                    for e in cutlass.range_constexpr(self.pack):
                        if j + e >= 0 and j + e <= last:
                            cute.make_tensor(place + e, cute.make_layout(1))[0] = elements[e]
            place += gD.stride[0] * self.step_i


buildable = WordAlignedTranspose.buildable
