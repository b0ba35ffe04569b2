"""Transposes of matrices with a short side: long rows from or to structures, the elements of one index of all rows.

Idea
    A matrix with few rows or columns is a few long rows on one side. On the other side it is an array of structures,
    without gaps. A CTA copies a span of the source to shared memory in whole words, as it lies. Then a thread gathers
    the elements of words of the target, and writes them: shared memory reads single bytes as fast as words.
Data movement
    Every element is written once. Tiles are cut where a sector of the target begins, another element in every row: a
    tile reads 64 bytes more of each long row than it writes, and the adjacent tile reads that too. A thread's words are
    so far apart that their elements are equally far apart in shared memory: it computes one address of each element of
    a word.
Limits
    Device memory; with elements of 1 byte also the accesses to shared memory, one an element.
Sources
    "CUDA C++ Programming Guide", shared memory: words of 32 banks; device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

import math

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import packed, shifted, woven
from gemmule.kernels.transpose.frame import Transpose, device_memory
from gemmule.kernels.transpose.tile_config import LINE, SECTOR, WARP, WORD, SkinnyConfig, TileConfig

# Units that a thread has in flight.
_UNITS = 8


class SkinnyTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S contiguous along i, and D contiguous along j, one of them without gaps.

    Parameters
    ----------
    config : SkinnyConfig
        The span and the threads.
    types : dict
        ``element``, an opaque type; ``structures``, the side that is an array of structures: ``source`` or ``target``;
        ``short``, the elements of a structure.
    """

    def __init__(self, config: SkinnyConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.from_structures = types["structures"] == "source"
        # Elements of a structure, its bytes, and those of structures that fill whole units.
        self.short = int(types["short"])
        self.size = self.short * self.item
        self.block = self.size * self.pack
        # Bytes of a unit, elements of a span, and those that a tile holds before it and in all.
        self.unit, self.span, self.before = config.unit(self.item), config.span(self.item), config.before(self.item)
        self.held = config.span_bytes // self.item
        # Units of a row's span; threads that move a held row, units of each, and rows that all threads move.
        self.units = self.span // self.pack
        self.lanes = min(self.threads, config.span_bytes // self.unit)
        self.each = config.span_bytes // self.unit // self.lanes
        self.abreast = self.threads // self.lanes
        # Rows that a thread reads together, and whether it exchanges their elements in registers.
        self.together = min(max(_UNITS // self.each, 1), -(-self.short // self.abreast))
        self.weaves = config.weaves(self.short, self.item) and not self.from_structures
        # Units of structures: all, from one of a thread to its next, and those that a thread reads together.
        self.count, self.step = self.short * self.held // self.pack, config.step(self.short, self.item)
        passes = -(-self.count // self.step)
        self.batch = -(-passes // -(-passes // _UNITS))
        # Bytes of padding after a block of structures.
        self.padding = config.padding(self.short, self.item)

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor, pitch: Int32):
        self.kernel(mS, mD, pitch).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @classmethod
    def buildable(cls, config: TileConfig, types: dict[str, str]) -> Buildable:
        found = super().buildable(config, types)
        return Buildable(found.function, (*found.arguments, Int32(1)))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor, pitch: Int32):
        """Move a span; `pitch` is the bytes in shared memory from a long row of the source to the next."""
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
        is_whole = tile > 0 and start + self.held + self.pack <= length
        if cutlass.const_expr(self.weaves):
            if is_whole and gD.iterator.toint() & (SECTOR - 1) == 0:
                self.weave(gS, gD, sT, start)
            else:
                self.move(gS, gD, sT, (start, pitch), is_whole)
        else:
            self.move(gS, gD, sT, (start, pitch), is_whole)

    @cute.jit
    def move(self, gS: cute.Tensor, gD: cute.Tensor, sT, place, is_whole):
        """Move a span at a place; `is_whole` is whether all that it holds is in the matrix."""
        start, pitch = place
        if cutlass.const_expr(self.from_structures):
            if is_whole:
                self.from_structures_to_rows(gS, gD, sT, start, True)
            else:
                self.from_structures_to_rows(gS, gD, sT, start, False)
        elif is_whole:
            self.from_rows_to_structures(gS, gD, sT, (start, pitch), True)
        else:
            self.from_rows_to_structures(gS, gD, sT, (start, pitch), False)

    @cute.jit
    def weave(self, gS: cute.Tensor, gD: cute.Tensor, sT, i0):
        """Move a span whose structures begin where a sector does, exchanging elements in registers.

        A warp moves a unit of each row a lane. The units of structures that each lane makes of them pass through
        shared memory, so that the warp writes contiguous ones.
        """
        tid, _, _ = cute.arch.thread_idx()
        warp, lane = tid // WARP, tid % WARP
        short = cutlass.const_expr(self.short)
        # An odd number of units keeps lanes in different banks.
        pitch = cutlass.const_expr(short | 1)
        own = sT + warp * (WARP * pitch * WORD)
        line, begin = Int64(gS.stride[1]) * self.item, gS.iterator.toint() + Int64(i0) * self.item
        bits = [Uint32((begin + line * r) & (WORD - 1)) * 8 for r in range(short)]
        places = [((begin + line * r) & -WORD) + cutlass.min(tid, self.lanes - 1) * WORD for r in range(short)]
        target = gD.iterator.toint() + Int64(i0) * (short * self.item) + (warp * (WARP * short) + lane) * WORD
        # Of each word of the structures: rows, and bytes in a row's word.
        elements = [divmod(number, short) for number in range(self.pack * short)]
        picks = [(row, i * self.item + byte) for i, row in elements for byte in range(self.item)]
        together = cutlass.const_expr(math.gcd(self.each, 1 << (max(_UNITS // short, 1).bit_length() - 1)))
        for batch in cutlass.range_constexpr(self.each // together):
            read = cute.make_rmem_tensor(cute.make_layout((short, 2, together)), Uint32)
            for p in cutlass.range_constexpr(together):
                further = cutlass.const_expr((batch * together + p) * self.threads * WORD)
                for r in cutlass.range_constexpr(short):
                    read[r, 0, p] = device_memory(Uint32, places[r] + further)[0]
                    read[r, 1, p] = device_memory(Uint32, places[r] + (further + WORD))[0]
            # Else the compiler saves registers, and waits for some words before it loads the others.
            cute.arch.sync_warp()
            for p in cutlass.range_constexpr(together):
                before = cutlass.const_expr((batch * together + p) * self.threads)
                words = cute.make_rmem_tensor(cute.make_layout(short), Uint32)
                for r in cutlass.range_constexpr(short):
                    words[r] = shifted(read[r, 0, p], read[r, 1, p], bits[r])
                for k in cutlass.range_constexpr(short):
                    word = woven(words, tuple(picks[WORD * k : WORD * (k + 1)]))
                    self.put(Uint32, own + (lane * pitch + k) * WORD, word, True)
                cute.arch.sync_warp()
                for k in cutlass.range_constexpr(short):
                    number = lane + k * WARP
                    if before + self.threads <= self.units or before + warp * WARP + number // short < self.units:
                        source = own + (number + number // short * (pitch - short)) * WORD
                        unit = cute.make_tensor(
                            cute.make_ptr(Uint32, source, cute.AddressSpace.smem), cute.make_layout(1)
                        )
                        self.put(Uint32, target + (before * short + k * WARP) * WORD, unit[0])
                cute.arch.sync_warp()

    @cute.jit
    def from_structures_to_rows(self, gS: cute.Tensor, gD: cute.Tensor, sT, j0, whole: cutlass.Constexpr[bool]):
        """Move a span; `whole` promises that all that it holds is in the matrix."""
        head = self.read_structures(gS, sT, j0, whole)
        cute.arch.sync_threads()
        self.write_rows(gD, (sT, head), j0, whole)

    @cute.jit
    def from_rows_to_structures(self, gS: cute.Tensor, gD: cute.Tensor, sT, place, whole: cutlass.Constexpr[bool]):
        """Move a span; `whole` promises that all that it holds is in the matrix."""
        i0, pitch = place
        inside = self.read_rows(gS, sT, place, whole)
        cute.arch.sync_threads()
        self.write_structures(gD, (sT + inside, pitch), i0, whole)

    @cute.jit
    def read_rows(self, gS: cute.Tensor, sT, span, whole: cutlass.Constexpr[bool]):
        """Copy the units that hold the spans of all rows, and return the first one's bytes before the span."""
        i0, pitch = span
        tid, _, _ = cute.arch.thread_idx()
        lane, first = tid % self.lanes, tid // self.lanes
        line = Int64(gS.stride[1]) * self.item
        begin = gS.iterator.toint() + Int64(i0 - self.before) * self.item
        inside = Int32(begin & (self.unit - 1))
        if cutlass.const_expr(not whole):
            memory = self.memory_of(gS)
            end = device_memory(self.element, self.end_address(memory))[0]
        rows = cutlass.const_expr(self.together * self.abreast)
        for batch in cutlass.range(-(-self.short // rows), unroll=1):
            row = first + batch * rows
            read = cute.make_rmem_tensor(cute.make_layout((self.each, self.together)), self.word)
            for p in cutlass.range_constexpr(self.together):
                # Beyond the last row it is read again.
                j = cutlass.min(row + p * self.abreast, self.short - 1)
                place = ((begin + line * j) & -self.unit) + lane * self.unit
                for u in cutlass.range_constexpr(self.each):
                    unit = place + u * self.lanes * self.unit
                    if cutlass.const_expr(not whole):
                        unit = self.unit_within(memory, unit)
                    read[u, p] = device_memory(self.word, unit)[0]
            for p in cutlass.range_constexpr(self.together):
                j = row + p * self.abreast
                target = sT + ((inside + j * pitch) & -self.unit) + lane * self.unit
                if j < self.short:
                    for u in cutlass.range_constexpr(self.each):
                        self.put(self.word, target + u * self.lanes * self.unit, read[u, p], True)
        if cutlass.const_expr(not whole and self.pack > 1):
            # The end of lower addresses is in the first row, unless rows are in reverse order.
            j = Int32(0) if (tid < self.pack) == (line >= 0) else Int32(self.short - 1)
            offset = self.end_address(memory) - (begin + line * j)
            cute.arch.sync_threads()
            if tid < 2 * self.pack and offset >= 0 and offset < self.held * self.item:
                self.put(self.element, sT + (inside + j * pitch) + Int32(offset), end, True)
        return inside

    @cute.jit
    def read_structures(self, gS: cute.Tensor, sT, j0, whole: cutlass.Constexpr[bool]):
        """Copy the units that hold a span of structures, and return the bytes before the span."""
        tid, _, _ = cute.arch.thread_idx()
        begin = gS.iterator.toint() + Int64(j0 - self.before) * self.size
        head = Int32(begin & (SECTOR - 1))
        if cutlass.const_expr(not whole):
            memory = self.memory_of(gS)
            end = device_memory(self.element, self.end_address(memory))[0]
        place, target = begin - head + tid * self.unit, sT + self.padded(tid * self.unit)
        # From a thread's unit to its next, in shared memory as many whole blocks.
        further = cutlass.const_expr(self.step * self.unit)
        advance = cutlass.const_expr(self.padded(further))
        number = tid if tid < self.step else self.count
        for _ in cutlass.range(-(-self.count // (self.batch * self.step)), unroll=1):
            read = cute.make_rmem_tensor(cute.make_layout(self.batch), self.word)
            for p in cutlass.range_constexpr(self.batch):
                if number + p * self.step < self.count:
                    unit = place + p * further
                    if cutlass.const_expr(not whole):
                        unit = self.unit_within(memory, unit)
                    read[p] = device_memory(self.word, unit)[0]
            for p in cutlass.range_constexpr(self.batch):
                if number + p * self.step < self.count:
                    self.put(self.word, target + p * advance, read[p], True)
            number += self.batch * self.step
            place += self.batch * further
            target += self.batch * advance
        if cutlass.const_expr(not whole and self.pack > 1):
            offset = self.end_address(memory) - (begin - head)
            cute.arch.sync_threads()
            if tid < 2 * self.pack and offset >= 0 and offset < self.held * self.size:
                self.put(self.element, sT + self.padded(Int32(offset)), end, True)
        return head + self.before * self.size

    @cute.jit
    def memory_of(self, gS: cute.Tensor):
        """Return the addresses at which a matrix's memory begins and ends."""
        far = Int64(gS.stride[1]) * self.item * (gS.shape[1] - 1)
        begin = gS.iterator.toint()
        return begin + cutlass.min(far, Int64(0)), begin + cutlass.max(far, Int64(0)) + gS.shape[0] * self.item

    @cute.jit
    def unit_within(self, memory, place):
        """Return the address of a unit, or of the nearest one that is within a matrix's memory."""
        begin, end = memory
        lowest, highest = (begin + (self.unit - 1)) & -self.unit, (end & -self.unit) - self.unit
        return cutlass.min(cutlass.max(place, lowest), highest)

    @cute.jit
    def end_address(self, memory):
        """Return the address of one of a matrix's first and last elements, which may share a unit with what is outside.

        The first threads have each one.
        """
        tid, _, _ = cute.arch.thread_idx()
        begin, end = memory
        number = tid % self.pack
        return begin + number * self.item if tid < self.pack else end - (number + 1) * self.item

    @cute.jit
    def write_rows(self, gD: cute.Tensor, structures, j0, whole: cutlass.Constexpr[bool]):
        """Gather units of the long rows from the structures in shared memory, and write them."""
        sT, head = structures
        tid, _, _ = cute.arch.thread_idx()
        lane, first = tid % self.lanes, tid // self.lanes
        line = Int64(gD.stride[0]) * self.item
        further = cutlass.const_expr(self.padded(self.lanes * self.block))
        for i in cutlass.range(first, self.short, self.abreast, unroll=1):
            row = gD.iterator.toint() + line * i
            # The lane's first element in the span, which begins where a sector of the row does.
            j = lane * self.pack - Int32(row & (SECTOR - 1)) // self.item
            source = head + j * self.size + i * self.item
            sources = [sT + self.padded(source + e * self.size) for e in range(self.pack)]
            place, ends = row + Int64(j0 + j) * self.item, (row, row + Int64(gD.shape[1]) * self.item)
            for u in cutlass.range_constexpr(self.each):
                if (u + 1) * self.lanes <= self.units or lane + u * self.lanes < self.units:
                    elements = self.gathered(sources, u * further)
                    self.write_unit(place + u * self.lanes * self.unit, elements, ends, whole)

    @cute.jit
    def write_structures(self, gD: cute.Tensor, rows, i0, whole: cutlass.Constexpr[bool]):
        """Gather units of the structures from the rows in shared memory, and write them from a sector's beginning."""
        sT, pitch = rows
        tid, _, _ = cute.arch.thread_idx()
        base = gD.iterator.toint()
        ends = base, base + Int64(gD.shape[0]) * self.size
        if tid < self.step:
            # The thread's first element, counted from the first one held of the first row.
            number = tid * self.pack + self.before * self.short - Int32(base & (SECTOR - 1)) // self.item
            i = number // self.short
            j = number - i * self.short
            sources = []
            for _ in cutlass.range_constexpr(self.pack):
                sources.append(sT + j * pitch + i * self.item)
                is_last = j + 1 == self.short
                i, j = (i + 1 if is_last else i), (0 if is_last else j + 1)
            place = (base & -SECTOR) + Int64(i0) * self.size + tid * self.unit
            count = cutlass.const_expr(self.short * self.units)
            passes, advance = cutlass.const_expr(count // self.step), self.step * self.unit // self.short
            for p in cutlass.range(passes, unroll=4):
                elements = self.gathered(sources, p * advance)
                self.write_unit(place + p * (self.step * self.unit), elements, ends, whole)
            if tid < count - passes * self.step:
                elements = self.gathered(sources, passes * advance)
                self.write_unit(place + passes * (self.step * self.unit), elements, ends, whole)

    @cute.jit
    def gathered(self, sources, further):
        """Return the elements of a unit in shared memory."""
        elements = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
        for e in cutlass.range_constexpr(self.pack):
            place = cute.make_ptr(self.element, sources[e] + further, cute.AddressSpace.smem)
            elements[e] = cute.make_tensor(place, cute.make_layout(1))[0]
        return elements

    @cute.jit
    def write_unit(self, place, elements: cute.Tensor, ends, whole: cutlass.Constexpr[bool]):
        """Write the elements of a unit that are in the memory between two ends."""
        begin, end = ends
        if whole or (place >= begin and place + self.unit <= end):
            if cutlass.const_expr(self.pack == 1):
                self.put(self.word, place, elements[0])
            else:
                self.put(self.word, place, Uint32(packed(elements)))
        else:
            for e in cutlass.range_constexpr(self.pack):
                if place + e * self.item >= begin and place + e * self.item < end:
                    self.put(self.element, place + e * self.item, elements[e])

    @cute.jit
    def put(self, kind: cutlass.Constexpr, address, value, shared: cutlass.Constexpr[bool] = False):
        """Store a value to device memory, or to shared memory."""
        space = cutlass.const_expr(cute.AddressSpace.smem if shared else cute.AddressSpace.gmem)
        target = cute.make_tensor(
            cute.make_ptr(kind, address, space, assumed_align=kind.width // 8), cute.make_layout(1)
        )
        target[0] = value

    def padded(self, offset):
        """Return an offset in shared memory, which has padding after each block of structures."""
        return offset + offset // self.block * self.padding if self.padding else offset


buildable = SkinnyTranspose.buildable
