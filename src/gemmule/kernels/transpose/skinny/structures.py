"""Spans of structures, which become long rows."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, cute

from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.skinny.span import UNITS, Span
from gemmule.kernels.transpose.tile_config import SECTOR, WARP, SkinnyConfig

# Instructions of a thread for each row that it writes from padded structures, and for each unit of it.
_ROW, _UNIT = 28, 9


class Structures(Span):
    """Moves a span of structures to long rows; parameters as of Span."""

    def __init__(self, config: SkinnyConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        # Bytes of padding after a block.
        self.padding = config.padding(self.short, self.item)
        most = min(self.threads, self.held_units)
        fewest = min(WARP, most) if self.padding else most
        self.share(min((1 << k for k in range(most.bit_length()) if 1 << k >= fewest), key=self._instructions))
        # Units that a tile holds, and those that a thread reads together.
        self.count = self.short * self.held // self.pack
        passes = -(-self.count // self.step)
        self.together = -(-passes // -(-passes // UNITS))

    def _instructions(self, lanes: int) -> float:
        """Return about the instructions of the busiest warp that writes rows, and of all in the mean."""
        row = _ROW + self.held_units // lanes * _UNIT
        rounds = -(-self.short // (self.threads // lanes))
        return (rounds + self.short * lanes / self.threads) * row

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
        if cutlass.const_expr(not whole):
            memory = self.memory_of(gS)
            end = device_memory(self.element, self.end_address(memory))[0]
        place, target = begin - head + tid * self.unit, sT + self.padded(tid * self.unit)
        # From a thread's unit to its next, in shared memory as many whole blocks.
        further = cutlass.const_expr(self.step * self.unit)
        advance = cutlass.const_expr(self.padded(further))
        number = tid if tid < self.step else self.count
        for _ in cutlass.range(-(-self.count // (self.together * self.step)), unroll=1):
            read = cute.make_rmem_tensor(cute.make_layout(self.together), self.word)
            for p in cutlass.range_constexpr(self.together):
                if number + p * self.step < self.count:
                    unit = place + p * further
                    if cutlass.const_expr(not whole):
                        unit = self.unit_within(memory, unit)
                    read[p] = device_memory(self.word, unit)[0]
            for p in cutlass.range_constexpr(self.together):
                if number + p * self.step < self.count:
                    self.put(self.word, target + p * advance, read[p], True)
            number += self.together * self.step
            place += self.together * further
            target += self.together * advance
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

    def padded(self, offset):
        """Return an offset in shared memory, which has padding after each block of structures."""
        return offset + offset // self.block * self.padding if self.padding else offset
