"""A span of a matrix with a short side: what is common to both directions."""

from __future__ import annotations

import cutlass
from cutlass import Int64, Uint32, cute

from gemmule.kernels.parts.words import packed
from gemmule.kernels.transpose.frame import Words
from gemmule.kernels.transpose.tile_config import SkinnyConfig

#: Units that a thread has in flight.
UNITS = 8


class Span(Words):
    """Base of what moves a span: its sizes, the ends of a matrix's memory, and units gathered from shared memory.

    Parameters
    ----------
    config : SkinnyConfig
        The span and the threads.
    types : dict
        The specialisation.
    """

    def __init__(self, config: SkinnyConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        # Elements of a structure, its bytes, and those of structures that fill whole units.
        self.short = int(types["short"])
        self.size = self.short * self.item
        self.block = self.size * self.pack
        # Bytes of a unit; elements of a span, those that a tile holds before it, and all that it holds.
        self.unit, self.span, self.before = config.unit(self.item), config.span(self.item), config.before(self.item)
        self.held = config.span_bytes // self.item
        # Units of a row's span, and those of a row that a tile holds.
        self.units, self.held_units = self.span // self.pack, config.span_bytes // self.unit
        # Units of structures from one of a thread to its next.
        self.step = config.step(self.short, self.item)

    def share(self, lanes: int) -> None:
        """Let so many threads move each row: all threads a few rows at once, and each a few units of a row."""
        self.lanes, self.abreast, self.each = lanes, self.threads // lanes, self.held_units // lanes

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
