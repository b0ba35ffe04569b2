"""A tile of whole rows of the target: read in whole words, kept and written as one run of memory."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.parts.words import exchange, joined, shifted
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import WARP
from gemmule.kernels.transpose.whole_rows.config import WholeRowsConfig
from gemmule.kernels.transpose.word_reads import ENDS, WordReads


class WholeRowsTile(WordReads):
    """Moves whole rows of D, contiguous along j and without gaps: D[i, j] = S[i, j], S contiguous along i.

    A block is as many columns of S as make a word, `pack`. A lane's word of each of them makes `pack` words of as many
    rows of D.

    Parameters
    ----------
    config : WholeRowsConfig
        The tile and its threads.
    types : dict
        ``element``, an opaque type of 1 or 2 bytes; ``swizzle``, of ``vectors``, or ``none``.
    """

    def __init__(self, config: WholeRowsConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.tile_i = config.tile_rows(self.item)
        self.spans, self.blocks = config.spans, config.blocks
        self.swizzles = types["swizzle"] == "vectors"

    @cute.jit
    def read(self, gS: cute.Tensor, sT, i0):
        """Load the rows from i0 on into shared memory, where they begin at an address; beyond them it is undefined."""
        tid, _, _ = cute.arch.thread_idx()
        rows, cols = gS.shape
        # Elements of one of the matrix's ends, which may share a word with what is outside.
        e, j = tid % (2 * ENDS), (cols - 1 if tid // (2 * ENDS) == 1 else 0)
        i = e - i0 if e < ENDS else rows - i0 - 2 * ENDS + e
        is_here = tid < 4 * ENDS and i >= 0 and i < self.tile_i and i0 + i < rows
        end = self.element(0)
        if is_here:
            end = self.element(gS[i0 + i, j])
        count = (cols + (self.pack - 1)) // self.pack
        parts = (count + (self.blocks - 1)) // self.blocks
        # Words that hold the ends of a row hold its neighbours' elements, but for the matrix's first row and last one.
        apart, is_first = gS.stride[1] >= 2 * self.pack, i0 == 0
        is_last = i0 + self.tile_i + self.pack > rows
        for unit in cutlass.range(tid // WARP, parts * self.spans, self.threads // WARP, unroll=1):
            # The last blocks overlap those before, which have stored theirs.
            stored = unit // self.spans * self.blocks
            first = cutlass.min(stored, count - self.blocks)
            # The first blocks are read with those before them.
            inside = (first > 1 or not is_first) and (first + self.blocks < count or not is_last)
            column = unit % self.spans * (WARP - 1) + tid % WARP
            read = cute.make_rmem_tensor(cute.make_layout((self.pack, self.blocks + 1)), self.word)
            if apart and inside:
                self.read_blocks(gS, read, (i0, column, first), True)
            else:
                self.read_blocks(gS, read, (i0, column, first), False)
            # Else the compiler saves registers, and waits for some words before it loads the others.
            cute.arch.sync_warp()
            line, origin = self.line_of(gS, i0, column)
            bits = [Uint32((origin + line * r) & 3) * 8 for r in range(self.pack)]
            self.store_blocks(sT, ((column, first, stored), cols), read, bits)
        if is_first or is_last:
            cute.arch.sync_threads()
            if is_here:
                self.put(self.element, self.placed(sT + (i * cols + j) * self.item), end, True)

    @cute.jit
    def read_blocks(self, gS: cute.Tensor, read: cute.Tensor, part, inside: cutlass.Constexpr[bool]):
        """Load a lane's words of blocks, and of the one before; `inside` promises that they are in the matrix's memory.

        Else other words of the matrix are read for those outside.
        """
        i0, column, first = part
        line, origin = self.line_of(gS, i0, column)
        before = origin + line * (cutlass.max(first - 1, 0) * self.pack)
        begin = origin + line * (first * self.pack)
        lowest, highest = Int64(0), Int64(0)
        if cutlass.const_expr(not inside):
            lowest, highest = self.words_within(gS)
        for r in cutlass.range_constexpr(self.pack):
            at = begin + line * r
            for p in cutlass.range_constexpr(self.blocks + 1):
                place = self.word_start(at)
                if cutlass.const_expr(p == 0):
                    place = self.word_start(before + line * r)
                elif cutlass.const_expr(p == self.blocks and r > 0):
                    # Beyond the last row it is read again.
                    beyond = cutlass.max((first + (p - 1)) * self.pack + r - (gS.shape[1] - 1), 0)
                    place = self.word_start(at - line * beyond)
                if cutlass.const_expr(not inside):
                    place = cutlass.min(cutlass.max(place, lowest), highest)
                read[r, p] = self.load(place)
                if cutlass.const_expr(p > 0):
                    at += line * self.pack

    @cute.jit
    def line_of(self, gS: cute.Tensor, i0, column):
        """Return the bytes from a row of S to the next, and the address of the lane's first element."""
        # Lanes beyond the row's end read one word, which completes the last one within it.
        i = cutlass.min(i0 + column * self.pack, gS.shape[0] - 1 + self.pack)
        return Int64(gS.stride[1]) * self.item, gS.iterator.toint() + Int64(i) * self.item

    @cute.jit
    def store_blocks(self, sT, part, read: cute.Tensor, bits):
        """Store blocks to shared memory: words of the run, shifted together from those of two blocks.

        `bits` is how far rows begin within their words.
        """
        (column, first, stored), cols = part
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % WARP
        behind = cute.make_rmem_tensor(cute.make_layout(self.pack), Uint32)
        block = cute.make_rmem_tensor(cute.make_layout(self.pack), Uint32)
        starts = [sT + (column * self.pack + e) * cols * self.item for e in range(self.pack)]
        # Bits of a row's first word that are the row's before.
        skews = [Uint32(start & 3) * 8 for start in starts]
        for p in cutlass.range_constexpr(self.blocks + 1):
            for r in cutlass.range_constexpr(self.pack):
                if cutlass.const_expr(p > 0):
                    behind[r] = block[r]
                block[r] = shifted(read[r, p], cute.arch.shuffle_sync_down(read[r, p], 1), bits[r])
            exchange(block)
            if cutlass.const_expr(p > 0):
                for e in cutlass.range_constexpr(self.pack):
                    target = (starts[e] & -4) + (first + (p - 1)) * 4
                    if lane < WARP - 1 and (p == self.blocks or first + (p - 1) >= stored):
                        word = joined(behind[e], block[e], skews[e])
                        if cutlass.const_expr(p == 1):
                            self.store_first(target, (word, skews[e]), first == 0)
                        elif cutlass.const_expr(p == self.blocks):
                            rest = cols - (first + (p - 1)) * self.pack
                            after = joined(block[e], Uint32(0), skews[e])
                            self.store_last(target, (word, after, skews[e]), rest)
                        else:
                            self.put(self.word, self.placed(target), word, True)

    @cute.jit
    def placed(self, address):
        """Return where what is at an address of shared memory is put: vectors of 8 lines change places within them."""
        return address ^ ((address >> 3) & 0x70) if cutlass.const_expr(self.swizzles) else address

    @cute.jit
    def store_first(self, target, word, is_first):
        """Store a word of a row, or those elements of its first word that are the row's."""
        value, skew = word
        if is_first and skew > 0:
            self.store_elements(target, value, (skew // (8 * self.item), self.pack))
        else:
            self.put(self.word, self.placed(target), value, True)

    @cute.jit
    def store_last(self, target, words, rest):
        """Store the last words of blocks: so many elements of the row from the second block on are left."""
        value, after, skew = words
        count = rest + Int32(skew) // (8 * self.item)
        if count >= self.pack:
            self.put(self.word, self.placed(target), value, True)
        else:
            self.store_elements(target, value, (0, count))
        if rest <= self.pack and count > self.pack:
            self.store_elements(target + 4, after, (0, count - self.pack))

    @cute.jit
    def store_elements(self, target, word, ends):
        """Store the elements of a word between two of them."""
        first, last = ends
        for e in cutlass.range_constexpr(self.pack):
            if e >= first and e < last:
                self.put(
                    self.element,
                    self.placed(target) + e * self.item,
                    self.low_element(word >> (8 * self.item * e)),
                    True,
                )

    @cute.jit
    def write(self, run, sT, size):
        """Write so many bytes from an address of shared memory on to device memory, in vectors."""
        tid, _, _ = cute.arch.thread_idx()
        head = Int32(run & (VECTOR_BYTES - 1))
        source, target, end = sT - head, run - head, head + size
        # The first and the last whole vector's places.
        first, last = (head + (VECTOR_BYTES - 1)) & -VECTOR_BYTES, end & -VECTOR_BYTES
        for at in cutlass.range(first + tid * VECTOR_BYTES, last, self.threads * VECTOR_BYTES, unroll=4):
            place = cute.make_ptr(
                self.word, self.placed(source + at), cute.AddressSpace.smem, assumed_align=VECTOR_BYTES
            )
            words = cute.make_tensor(place, cute.make_layout(VECTOR_BYTES // 4))
            cute.autovec_copy(words, device_memory(self.word, target + at, VECTOR_BYTES // 4))
        # Elements before and after them, one a thread.
        count = cutlass.const_expr(VECTOR_BYTES // self.item)
        at, stop = tid * self.item + head, first
        if tid >= count:
            at, stop = (tid - count) * self.item + last, end
        if tid < 2 * count and at < stop:
            place = cute.make_ptr(self.element, self.placed(source + at), cute.AddressSpace.smem)
            self.put(self.element, target + at, cute.make_tensor(place, cute.make_layout(1))[0])
