"""Spans of long rows, which become structures: gathered from shared memory, or woven in registers."""

from __future__ import annotations

import math

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from gemmule.kernels.parts.words import shifted, woven
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.skinny.config import SkinnyConfig
from gemmule.kernels.transpose.skinny.span import UNITS, Span
from gemmule.kernels.transpose.tile_config import SECTOR, WARP, WORD

# Gathers of a thread that are unrolled.
_PASSES = 8


class LongRows(Span):
    """Moves a span of long rows to structures; parameters as of Span."""

    def __init__(self, config: SkinnyConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.weaves = config.weaves(self.short, self.item)
        self.lanes_woven = min(self.threads, self.held_units)
        self.share(gathers=False)

    @cute.jit
    def move(self, gS: cute.Tensor, gD: cute.Tensor, sT, span, whole: cutlass.Constexpr[bool]):
        """Move a span: its first element, and the bytes in shared memory from a row to the next.

        `whole` promises that all that it holds is in the matrix.
        """
        if cutlass.const_expr(whole and self.weaves):
            if gD.iterator.toint() & (SECTOR - 1) == 0:
                self.weave(gS, gD, sT, span[0])
            else:
                self.gather(gS, gD, sT, span, True)
        else:
            self.gather(gS, gD, sT, span, whole)

    @cute.jit
    def gather(self, gS: cute.Tensor, gD: cute.Tensor, sT, span, whole: cutlass.Constexpr[bool]):
        """Copy a span in its own order, and gather its elements."""
        inside = self.read(gS, sT, span, whole)
        cute.arch.sync_threads()
        self.write(gD, sT + inside, span, whole)

    @cute.jit
    def read(self, gS: cute.Tensor, sT, span, whole: cutlass.Constexpr[bool]):
        """Copy the units that hold the spans of all rows, and return the first one's bytes before the span."""
        i0, pitch = span
        tid, _, _ = cute.arch.thread_idx()
        lane, first = tid % self.lanes, tid // self.lanes
        line = Int64(gS.stride[1]) * self.item
        begin = gS.iterator.toint() + Int64(i0 - self.before) * self.item
        inside = Int32(begin & (self.unit - 1))
        count = cutlass.const_expr(self.rounds * self.each)
        for batch in cutlass.range_constexpr(0, count, UNITS):
            read = cute.make_rmem_tensor(cute.make_layout(UNITS), self.word)
            for stores in cutlass.range_constexpr(1 if self.asynchronous else 2):
                for number in cutlass.range_constexpr(batch, min(batch + UNITS, count)):
                    p, u = cutlass.const_expr(divmod(number, self.each))
                    j, further = first + p * self.abreast, (u * self.lanes + lane) * self.unit
                    place, target = begin + line * j, inside + j * pitch
                    if cutlass.const_expr(self.pack > 1):
                        place, target = place & -self.unit, target & -self.unit
                    place, target = place + further, sT + target + further
                    if (p + 1) * self.abreast <= self.short or j < self.short:
                        if cutlass.const_expr(self.asynchronous):
                            self.copy(gS, place, target, whole)
                        elif cutlass.const_expr(stores):
                            self.put(self.word, target, read[number - batch], True)
                        else:
                            read[number - batch] = self.load(gS, place, whole)
        if cutlass.const_expr(self.asynchronous):
            cute.arch.cp_async_commit_group()
        if cutlass.const_expr(not whole and self.pack > 1):
            memory = self.memory_of(gS)
            end = device_memory(self.element, self.end_address(memory))[0]
        if cutlass.const_expr(self.asynchronous):
            cute.arch.cp_async_wait_group(0)
        if cutlass.const_expr(not whole and self.pack > 1):
            # The end of lower addresses is in the first row, unless rows are in reverse order.
            j = Int32(0) if (tid < self.pack) == (line >= 0) else Int32(self.short - 1)
            offset = self.end_address(memory) - (begin + line * j)
            cute.arch.sync_threads()
            if tid < 2 * self.pack and offset >= 0 and offset < self.held * self.item:
                self.put(self.element, sT + (inside + j * pitch) + Int32(offset), end, True)
        return inside

    @cute.jit
    def write(self, gD: cute.Tensor, sT, span, whole: cutlass.Constexpr[bool]):
        """Gather units of the structures from the rows in shared memory, and write them from a sector's beginning."""
        i0, pitch = span
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
            for p in cutlass.range(passes, unroll=_PASSES):
                elements = self.gathered(sources, p * advance)
                self.write_unit(place + p * (self.step * self.unit), elements, ends, whole)
            if tid < count - passes * self.step:
                elements = self.gathered(sources, passes * advance)
                self.write_unit(place + passes * (self.step * self.unit), elements, ends, whole)

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
        places = [((begin + line * r) & -WORD) + cutlass.min(tid, self.lanes_woven - 1) * WORD for r in range(short)]
        target = gD.iterator.toint() + Int64(i0) * (short * self.item) + (warp * (WARP * short) + lane) * WORD
        # Each word of the structures: rows, and bytes in a row's word.
        elements = [divmod(number, short) for number in range(self.pack * short)]
        picks = [(row, i * self.item + byte) for i, row in elements for byte in range(self.item)]
        each = cutlass.const_expr(self.held_units // self.lanes_woven)
        together = cutlass.const_expr(math.gcd(each, 1 << (max(UNITS // short, 1).bit_length() - 1)))
        for batch in cutlass.range_constexpr(each // together):
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
