"""Transposes of matrices with a short side: long rows from or to structures, the elements of one index of all rows.

Idea
    A matrix with few rows or columns is a few long rows on one side. On the other side it is an array of structures,
    without gaps. A CTA moves a span of the long rows with all of the short side. It accesses the structures in whole
    words as they lie, and the long rows in vectors of 16 bytes. In between elements are stored to or loaded from their
    places in shared memory one by one: shared memory moves single bytes as fast as words.
Data movement
    Every element is written once. Tiles are cut where a sector of the target begins, another element in every row: a
    tile reads a sector more of each long row than it writes, and the adjacent tile reads that too. Shared memory has a
    unit of padding after each 128 bytes, so that structures of any size are in different banks.
Limits
    Device memory; with elements of 1 byte also the instructions.
Sources
    "CUDA C++ Programming Guide", shared memory: words of 32 banks; device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import packed
from gemmule.kernels.transpose.frame import Transpose, device_memory
from gemmule.kernels.transpose.tile_config import LINE, SECTOR, WORD, SkinnyConfig

# Units of the structures, and vectors of the long rows, that a thread has in flight.
_UNITS, _VECTORS = 8, 4


class SkinnyTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j, one of them without gaps.

    Parameters
    ----------
    config : SkinnyConfig
        The span and the threads.
    types : dict
        ``element``, an opaque type; ``structures``, the side that is an array of structures: ``source`` or ``target``.
    """

    def __init__(self, config: SkinnyConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.from_structures = types["structures"] == "source"
        # Bytes of a unit of the structures; elements of a vector, and a vector's words.
        self.unit, self.vector, self.words = config.unit(self.item), config.vector(self.item), 16 // WORD
        # Elements of the span, and those that a tile holds before it.
        self.span, self.before = config.span(self.item), config.before(self.item)
        # Vectors of a row's span, and those further that a row which begins within a vector touches.
        self.vectors, self.more = config.span_bytes // 16, config.more_vectors

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        cta, _, _ = cute.arch.block_idx()
        length = mS.shape[1] if cutlass.const_expr(self.from_structures) else mS.shape[0]
        tiles = (length + (self.before + self.span - 1)) // self.span
        tile, l0, l1, l2 = Int32(cta), Int32(0), Int32(0), Int32(0)
        # A single matrix divides nothing.
        if cta >= tiles:
            batch = cta // tiles
            tile = cta - batch * tiles
            l0, l1, l2 = batch % mS.shape[2], batch // mS.shape[2] % mS.shape[3], batch // mS.shape[2] // mS.shape[3]
        gS, gD = mS[None, None, l0, l1, l2], mD[None, None, l0, l1, l2]
        # The launch recipe has the size.
        sT = SmemAllocator().allocate_tensor(cutlass.Uint8, cute.make_layout(LINE), LINE).iterator.toint()
        overlap_predecessor()
        start = tile * self.span
        is_whole = tile > 0 and start + (self.span + self.more * self.vector) <= length
        if cutlass.const_expr(self.from_structures):
            if is_whole:
                self.read_structures(gS, sT, start, True)
            else:
                self.read_structures(gS, sT, start, False)
            cute.arch.sync_threads()
            if is_whole:
                self.write_rows(gS, gD, sT, start, True)
            else:
                self.write_rows(gS, gD, sT, start, False)
        else:
            if is_whole:
                self.read_rows(gS, gD, sT, start, True)
            else:
                self.read_rows(gS, gD, sT, start, False)
            cute.arch.sync_threads()
            if is_whole:
                self.write_structures(gD, sT, start, True)
            else:
                self.write_structures(gD, sT, start, False)

    @cute.jit
    def read_structures(self, gS: cute.Tensor, sT, j0, whole: cutlass.Constexpr[bool]):
        """Copy the units that hold a span of structures to shared memory.

        `whole` promises that all of them are in the matrix.
        """
        tid, _, _ = cute.arch.thread_idx()
        size = gS.shape[0] * self.item
        base = gS.iterator.toint()
        head = self.structures_ahead(gS, j0)
        begin = base + Int64(j0 - self.before) * size - head
        count = (head + (self.before + self.span) * size + (self.unit - 1)) // self.unit
        step = cutlass.const_expr(_UNITS * self.threads)
        for batch in cutlass.range((count + (step - 1)) // step, unroll=1):
            first = tid + batch * step
            read = cute.make_rmem_tensor(cute.make_layout(_UNITS), self.word)
            for p in cutlass.range_constexpr(_UNITS):
                # Beyond the span its last unit is read again.
                place = begin + cutlass.min(first + p * self.threads, count - 1) * self.unit
                if cutlass.const_expr(whole):
                    read[p] = device_memory(self.word, place)[0]
                else:
                    read[p] = self.read_unit(place, base, base + Int64(gS.shape[1]) * size)
            for p in cutlass.range_constexpr(_UNITS):
                if first + p * self.threads < count:
                    self.put_shared(self.word, sT, (first + p * self.threads) * self.unit, read[p])

    @cute.jit
    def read_unit(self, place, begin, end):
        """Read a unit from within the memory of a matrix; elements of others are undefined."""
        if cutlass.const_expr(self.pack == 1):
            unit = device_memory(self.word, cutlass.min(cutlass.max(place, begin), end - self.unit))[0]
        else:
            unit = Uint32(0)
            if place >= begin and place + self.unit <= end:
                unit = Uint32(device_memory(self.word, place)[0])
            else:
                for e in cutlass.range_constexpr(self.pack):
                    address = cutlass.min(cutlass.max(place + e * self.item, begin), end - self.item)
                    element = Uint32(device_memory(self.element, address)[0])
                    unit = Uint32(unit | (element << (8 * self.item * e)))
        return unit

    @cute.jit
    def structures_ahead(self, gS: cute.Tensor, j0):
        """Return the bytes from a sector's beginning to the first structure of a tile."""
        return Int32((gS.iterator.toint() + Int64(j0 - self.before) * (gS.shape[0] * self.item)) & (SECTOR - 1))

    @cute.jit
    def write_rows(self, gS: cute.Tensor, gD: cute.Tensor, sT, j0, whole: cutlass.Constexpr[bool]):
        """Gather vectors of the long rows from the structures in shared memory, and write them."""
        tid, _, _ = cute.arch.thread_idx()
        size, line = gS.shape[0] * self.item, Int64(gD.stride[0]) * self.item
        head = self.structures_ahead(gS, j0) + self.before * size
        for number in cutlass.range(tid, gS.shape[0] * self.vectors, self.threads, unroll=1):
            i = number // self.vectors
            row = gD.iterator.toint() + line * i
            # The vector's first element in the span, which begins where a sector of the row does.
            j = number % self.vectors * self.vector - Int32(row & (SECTOR - 1)) // self.item
            source = head + j * size + i * self.item
            elements = cute.make_rmem_tensor(cute.make_layout(self.vector), self.element)
            for e in cutlass.range_constexpr(self.vector):
                elements[e] = self.shared(self.element, sT, source + e * size)[0]
            place = row + Int64(j0 + j) * self.item
            if cutlass.const_expr(whole):
                self.write_vector(place, elements)
            else:
                self.write_inside(place, elements, j0 + j, gD.shape[1])

    @cute.jit
    def write_inside(self, place, elements: cute.Tensor, j, length):
        """Write the elements of a vector that are in a row; the first one is number j."""
        if j >= 0 and j + self.vector <= length:
            self.write_vector(place, elements)
        else:
            for e in cutlass.range_constexpr(self.vector):
                if j + e >= 0 and j + e < length:
                    self.put(self.element, place + e * self.item, elements[e])

    @cute.jit
    def write_vector(self, place, elements: cute.Tensor):
        """Write a vector."""
        if cutlass.const_expr(self.pack == 1):
            cute.autovec_copy(elements, device_memory(self.element, place, self.vector))
        else:
            words = cute.make_rmem_tensor(cute.make_layout(self.words), Uint32)
            for k in cutlass.range_constexpr(self.words):
                part = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
                for e in cutlass.range_constexpr(self.pack):
                    part[e] = elements[k * self.pack + e]
                words[k] = Uint32(packed(part))
            cute.autovec_copy(words, device_memory(Uint32, place, self.words))

    @cute.jit
    def read_rows(self, gS: cute.Tensor, gD: cute.Tensor, sT, i0, whole: cutlass.Constexpr[bool]):
        """Read vectors of the long rows, and store their elements to their structures in shared memory.

        `whole` promises that all of them are in the matrix.
        """
        tid, _, _ = cute.arch.thread_idx()
        origin = self.structures_at(gD) + Int32(gD.iterator.toint() & (SECTOR - 1))
        total = gS.shape[1] * self.vectors
        together = cutlass.const_expr(_VECTORS if whole else 1)
        step = cutlass.const_expr(together * self.threads)
        for batch in cutlass.range((total + (step - 1)) // step, unroll=1):
            first = tid + batch * step
            vectors = cute.make_rmem_tensor(cute.make_layout((self.vector, together)), self.element)
            targets = []
            for p in cutlass.range_constexpr(together):
                # Beyond the last row its last vector is read again.
                number = cutlass.min(first + p * self.threads, total - 1)
                j, v = number // self.vectors, number % self.vectors
                i = self.read_vector(gS, i0, j, v, vectors[None, p], whole)
                targets.append(origin + (i * gS.shape[1] + j) * self.item)
            for p in cutlass.range_constexpr(together):
                if first + p * self.threads < total:
                    self.scatter(sT, targets[p], gS.shape[1] * self.item, vectors[None, p])
        rest = gS.shape[1] * self.more
        for number in cutlass.range(tid, rest, self.threads, unroll=1):
            j, v = number // self.more, self.vectors + number % self.more
            vector = cute.make_rmem_tensor(cute.make_layout(self.vector), self.element)
            i = self.read_vector(gS, i0, j, v, vector, whole)
            self.scatter(sT, origin + (i * gS.shape[1] + j) * self.item, gS.shape[1] * self.item, vector)

    @cute.jit
    def read_vector(self, gS: cute.Tensor, i0, j, v, elements: cute.Tensor, whole: cutlass.Constexpr[bool]):
        """Read vector v of a tile's row j, and return its first element's number in the span."""
        begin = (gS.iterator + cute.crd2idx((i0 - self.before, j), gS.layout)).toint()
        i = v * self.vector - self.before - Int32(begin & 15) // self.item
        place = gS.iterator.toint() + Int64(gS.stride[1]) * self.item * j + Int64(i0 + i) * self.item
        if cutlass.const_expr(not whole):
            for e in cutlass.range_constexpr(self.vector):
                # Of the matrix's ends the nearest element is read, and not written.
                inside = cutlass.min(cutlass.max(i0 + i + e, 0), gS.shape[0] - 1) - (i0 + i)
                elements[e] = device_memory(self.element, place + inside * self.item)[0]
        elif cutlass.const_expr(self.pack == 1):
            cute.autovec_copy(device_memory(self.element, place, self.vector), elements)
        else:
            words = cute.make_rmem_tensor(cute.make_layout(self.words), Uint32)
            cute.autovec_copy(device_memory(Uint32, place, self.words), words)
            for e in cutlass.range_constexpr(self.vector):
                elements[e] = self.element(words[e // self.pack] >> (e % self.pack * 8 * self.item))
        return i

    @cute.jit
    def scatter(self, sT, target, size, elements: cute.Tensor):
        """Store elements to shared memory, one to each structure of `size` bytes."""
        for e in cutlass.range_constexpr(self.vector):
            self.put_shared(self.element, sT, target + e * size, elements[e])

    @cute.jit
    def structures_at(self, gD: cute.Tensor):
        """Return the offset in shared memory of the sector in which the span begins; structures before it are held."""
        return ((self.before + self.vector) * self.item * gD.shape[1] + (LINE - 1)) // LINE * LINE

    @cute.jit
    def write_structures(self, gD: cute.Tensor, sT, i0, whole: cutlass.Constexpr[bool]):
        """Write the units of the structures as they lie in shared memory, from a sector's beginning on."""
        tid, _, _ = cute.arch.thread_idx()
        base, origin = gD.iterator.toint(), self.structures_at(gD)
        size = gD.shape[1] * self.item
        begin, end = (base & -SECTOR) + Int64(i0) * size, base + Int64(gD.shape[0]) * size
        count = gD.shape[1] * (self.span * self.item // self.unit)
        for number in cutlass.range(tid, count, self.threads, unroll=4 if whole else 1):
            word = self.shared(self.word, sT, origin + number * self.unit)[0]
            place = begin + number * self.unit
            if cutlass.const_expr(whole):
                self.put(self.word, place, word)
            else:
                self.put_inside(word, place, base, end)

    @cute.jit
    def put_inside(self, word, place, begin, end):
        """Write the elements of a unit that are within the memory of a matrix."""
        if place >= begin and place + self.unit <= end:
            self.put(self.word, place, word)
        elif cutlass.const_expr(self.pack > 1):
            for e in cutlass.range_constexpr(self.pack):
                if place + e * self.item >= begin and place + e * self.item < end:
                    self.put(self.element, place + e * self.item, self.element(word >> (8 * self.item * e)))

    @cute.jit
    def put(self, kind: cutlass.Constexpr, address, value):
        """Store a value to device memory."""
        target = device_memory(kind, address)
        target[0] = value

    @cute.jit
    def put_shared(self, kind: cutlass.Constexpr, sT, offset, value):
        """Store a value to shared memory."""
        target = self.shared(kind, sT, offset)
        target[0] = value

    @cute.jit
    def shared(self, kind: cutlass.Constexpr, sT, offset):
        """Return a place in shared memory, which has a unit of padding after each line of 128 bytes."""
        address = sT + offset + (offset >> 7) * self.unit
        return cute.make_tensor(cute.make_ptr(kind, address, cute.AddressSpace.smem), cute.make_layout(1))


buildable = SkinnyTranspose.buildable
