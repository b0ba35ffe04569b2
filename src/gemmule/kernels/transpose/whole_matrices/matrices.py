"""Matrices in shared memory: bulk copies of the source, and words of the target gathered element by element."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.parts.async_copy import copy_bulk_async
from gemmule.kernels.parts.words import packed
from gemmule.kernels.transpose.frame import Words, device_memory
from gemmule.kernels.transpose.tile_config import SECTOR, WORD

# Words of a thread whose elements are read before the first is written.
_UNROLLED = 4


class Matrices(Words):
    """Matrices of a CTA, in elements of 1 or 2 bytes."""

    @cute.jit
    def read(self, memory, place, shares, barrier: cute.Pointer):
        """Begin to copy every so many matrices to shared memory, and arrive at a barrier for them."""
        source, end = memory
        first, matrices, size, pitch = shares
        nbytes = size * self.item
        expected = Int32(0)
        for matrix in cutlass.range(first, matrices, self.threads, unroll=1):
            begin = source + matrix * nbytes
            late = Int32(begin & (VECTOR_BYTES - 1))
            vectors = (late + nbytes + VECTOR_BYTES - 1) & -VECTOR_BYTES
            if begin - late + vectors > end:
                # The end of memory is in the last vector: its elements are copied one by one.
                vectors -= VECTOR_BYTES
                for offset in cutlass.range(cutlass.max(vectors - late, 0), nbytes, self.item, unroll=1):
                    value = device_memory(self.element, begin + offset)[0]
                    self.put(self.element, place + matrix * pitch * self.item + offset, value, True)
            expected += vectors
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, expected)
        for matrix in cutlass.range(first, matrices, self.threads, unroll=1):
            begin = source + matrix * nbytes
            late = Int32(begin & (VECTOR_BYTES - 1))
            vectors = (late + nbytes + VECTOR_BYTES - 1) & -VECTOR_BYTES
            if begin - late + vectors > end:
                vectors -= VECTOR_BYTES
            if vectors > 0:
                copy_bulk_async(place + matrix * pitch * self.item - late, begin - late, vectors, barrier)

    @cute.jit
    def put_again(self, place, matrices, sizes):
        """Store a matrix's first rows, from the second element on, behind its last one; the next one's end a row."""
        length, size, by_again, pitch = sizes
        tid, _, _ = cute.arch.thread_idx()
        again = length * (self.pack - 1)
        for number in cutlass.range(tid, matrices * again, self.threads, unroll=1):
            matrix = Int32(cute.arch.mul_hi(Uint32(number), Uint32(by_again)))
            within = number - matrix * again
            row = Int32(0)
            for above in cutlass.range_constexpr(1, self.pack - 1):
                row += 1 if within >= above * length else 0
            at = matrix * pitch + within + 1
            is_last = within + 1 == (row + 1) * length
            if is_last:
                at = (matrix + 1) * pitch + row * length
            if not is_last or matrix + 1 < matrices:
                value = self.element_at(place + at * self.item)
                self.put(self.element, place + (matrix * pitch + size + within) * self.item, value, True)

    @cute.jit
    def write_ends(self, run, place, sizes, by_width):
        """Write the elements of a run of the target that are not in whole words."""
        target, count = run
        _, width, _, _ = sizes
        tid, _, _ = cute.arch.thread_idx()
        head = cutlass.min(self.head(target), count)
        tail = (count - head) & (self.pack - 1)
        if tid < head + tail:
            number = tid if tid < head else count - 1 - (tid - head)
            row = Int32(cute.arch.mul_hi(Uint32(number), Uint32(by_width)))
            value = self.element_at(place + self.place_of(row, number - row * width, sizes) * self.item)
            self.put(self.element, target + number * self.item, value)

    @cute.jit
    def write(self, run, place, sizes):
        """Write the whole words of a run of the target."""
        target, count = run
        _, width, _, _, by_width = sizes
        tid, _, _ = cute.arch.thread_idx()
        head = self.head(target)
        words = cutlass.max(count - head, 0) // self.pack
        target += head * self.item
        # A warp writes whole sectors: some lanes have no first word.
        start = tid - Int32(target & (SECTOR - 1)) // WORD
        if start >= 0 and start < words:
            number = head + start * self.pack
            row = Int32(cute.arch.mul_hi(Uint32(number), Uint32(by_width)))
            self.write_word(target + start * WORD, place, (row, number - row * width), sizes)
        start += self.threads
        number = head + start * self.pack
        row = Int32(cute.arch.mul_hi(Uint32(number), Uint32(by_width)))
        along = number - row * width
        step = cutlass.const_expr(self.threads * self.pack)
        rows = Int32(cute.arch.mul_hi(Uint32(step), Uint32(by_width)))
        rest = step - rows * width
        for word in cutlass.range(start, words, self.threads, unroll=_UNROLLED):
            self.write_word(target + word * WORD, place, (row, along), sizes)
            along += rest
            row += rows
            if along >= width:
                along -= width
                row += 1

    @cute.jit
    def write_word(self, address, place, at, sizes):
        """Write a word of the target from its first element's row and place in it."""
        length, _, by_length, further, _ = sizes
        elements = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
        begin = place + self.place_of(*at, (length, 0, by_length, further)) * self.item
        for e in cutlass.range_constexpr(self.pack):
            elements[e] = self.element_at(begin + e * length * self.item)
        self.put(Uint32, address, Uint32(packed(elements)))

    @cute.jit
    def head(self, target):
        """Return the elements of a run of the target before its first whole word."""
        return -Int32(target & (WORD - 1)) // self.item & (self.pack - 1)

    @cute.jit
    def place_of(self, row, along, sizes):
        """Return the place of an element in shared memory by its row of the target and its place in it."""
        length, _, by_length, further = sizes
        matrix = Int32(cute.arch.mul_hi(Uint32(row), Uint32(by_length)))
        return row + along * length + matrix * further

    @cute.jit
    def element_at(self, address):
        """Return an element in shared memory."""
        place = cute.make_ptr(self.element, address, cute.AddressSpace.smem, assumed_align=self.item)
        return cute.make_tensor(place, cute.make_layout(1))[0]
