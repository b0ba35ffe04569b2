"""Spans of structures, which become long rows."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, cute

from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.skinny.config import SkinnyConfig
from gemmule.kernels.transpose.skinny.span import UNITS, Span
from gemmule.kernels.transpose.tile_config import SECTOR


class Structures(Span):
    """Moves a span of structures to long rows; parameters as of Span."""

    def __init__(self, config: SkinnyConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.share(gathers=True)
        # Units after which one of padding follows, as a power of 2, or None.
        self.padding = config.padding(self.short, self.item)
        # Units that a tile holds.
        self.count = self.short * self.held // self.pack

    @cute.jit
    def move(self, gS: cute.Tensor, gD: cute.Tensor, sT, j0, whole: cutlass.Constexpr[bool]):
        """Move a span from an element on; `whole` promises that all that it holds is in the matrix."""
        head = self.read(gS, sT, j0, whole)
        cute.arch.sync_threads()
        self.write(gD, (sT, head), j0, whole)

    @cute.jit
    def read(self, gS: cute.Tensor, sT, j0, whole: cutlass.Constexpr[bool]):
        """Copy the units that hold a span of structures, and return the bytes before the span."""
        tid, _, _ = cute.arch.thread_idx()
        begin = gS.iterator.toint() + Int64(j0 - self.before) * self.size
        head = Int32(begin & (SECTOR - 1))
        place, target = begin - head + tid * self.unit, sT + self.padded(tid * self.unit)
        passes = cutlass.const_expr(-(-self.count // self.threads))
        for batch in cutlass.range_constexpr(0, passes, UNITS):
            read = cute.make_rmem_tensor(cute.make_layout(UNITS), self.word)
            for stores in cutlass.range_constexpr(1 if self.asynchronous else 2):
                for p in cutlass.range_constexpr(batch, min(batch + UNITS, passes)):
                    further = cutlass.const_expr(p * self.threads * self.unit)
                    if (p + 1) * self.threads <= self.count or tid < self.count - p * self.threads:
                        if cutlass.const_expr(self.asynchronous):
                            self.copy(gS, place + further, target + self.padded(further), whole)
                        elif cutlass.const_expr(stores):
                            self.put(self.word, target + self.padded(further), read[p - batch], True)
                        else:
                            read[p - batch] = self.load(gS, place + further, whole)
        if cutlass.const_expr(self.asynchronous):
            cute.arch.cp_async_commit_group()
        if cutlass.const_expr(not whole and self.pack > 1):
            memory = self.memory_of(gS)
            end = device_memory(self.element, self.end_address(memory))[0]
        if cutlass.const_expr(self.asynchronous):
            cute.arch.cp_async_wait_group(0)
        if cutlass.const_expr(not whole and self.pack > 1):
            offset = self.end_address(memory) - (begin - head)
            cute.arch.sync_threads()
            if tid < 2 * self.pack and offset >= 0 and offset < self.held * self.size:
                self.put(self.element, sT + self.padded(Int32(offset)), end, True)
        return head + self.before * self.size

    @cute.jit
    def write(self, gD: cute.Tensor, structures, j0, whole: cutlass.Constexpr[bool]):
        """Gather units of the long rows from the structures in shared memory, and write them."""
        sT, head = structures
        tid, _, _ = cute.arch.thread_idx()
        lane, first = tid % self.lanes, tid // self.lanes
        line = Int64(gD.stride[0]) * self.item
        further = cutlass.const_expr(self.padded(self.lanes * self.block))
        begin = gD.iterator.toint() + line * first
        for p in cutlass.range_constexpr(self.rounds):
            i = first + p * self.abreast
            if (p + 1) * self.abreast <= self.short or i < self.short:
                row = begin + line * (p * self.abreast)
                # The lane's first element in the span, which begins where a sector of the row does.
                j = lane * self.pack - Int32(row & (SECTOR - 1)) // self.item
                source = head + j * self.size + i * self.item
                sources = [sT + self.padded(source + e * self.size) for e in range(self.pack)]
                place, ends = row + Int64(j0 + j) * self.item, (row, row + Int64(gD.shape[1]) * self.item)
                for u in cutlass.range_constexpr(self.each):
                    if (u + 1) * self.lanes <= self.units or lane + u * self.lanes < self.units:
                        elements = self.gathered(sources, u * further)
                        self.write_unit(place + u * self.lanes * self.unit, elements, ends, whole)

    def padded(self, offset):
        """Return an offset in shared memory, which has padding."""
        if self.padding is None:
            return offset
        return offset + (offset >> (self.padding + self.unit.bit_length() - 1)) * self.unit
