"""A span of a matrix with a short side: what is common to both directions."""

from __future__ import annotations

import cutlass
from cutlass import Int64, Uint32, cute

from gemmule.kernels.parts.async_copy import copy_async
from gemmule.kernels.parts.words import packed
from gemmule.kernels.transpose.frame import Words, device_memory
from gemmule.kernels.transpose.skinny.config import SkinnyConfig
from gemmule.kernels.transpose.tile_config import WARP

#: Units that a thread loads before it stores them to shared memory.
UNITS = 8
# Elements of structures of which a thread has few units.
_FEW = 16
# Instructions of a thread for a row that it copies or writes, and for a unit of it but those of its elements.
_ROW, _UNIT = 14, 2


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
        # Few units of a thread are faster through registers than by cp.async.
        self.asynchronous = self.short > _FEW
        self.size = self.short * self.item
        self.block = self.size * self.pack
        # Bytes of a unit; elements of a span, those that a tile holds before it, and all that it holds.
        self.unit, self.span, self.before = config.unit(self.item), config.span(self.item), config.before(self.item)
        self.held = config.span_bytes // self.item
        # Units of a row's span, and those of a row that a tile holds.
        self.units, self.held_units = self.span // self.pack, config.span_bytes // self.unit
        # Units of structures from one of a thread to its next.
        self.step = config.step(self.short, self.item)

    def share(self, gathers: bool) -> None:
        """Let some threads move each row, all threads a few rows at once, so that the busiest warp moves least."""
        unit = _UNIT + (2 * self.pack if gathers else 0)
        most = min(self.threads, self.held_units)

        def instructions(lanes: int) -> float:
            """Return about the instructions of the busiest warp, and of all in the mean."""
            rounds = -(-self.short * lanes // self.threads)
            return (rounds + self.short * lanes / self.threads) * (_ROW + self.held_units // lanes * unit)

        fewest = min(WARP, most)
        shares = (1 << k for k in range(most.bit_length()) if 1 << k >= fewest and self.threads % (1 << k) == 0)
        self.lanes = min(shares, key=instructions)
        self.abreast, self.each = self.threads // self.lanes, self.held_units // self.lanes
        self.rounds = -(-self.short // self.abreast)

    @cute.jit
    def load(self, gS: cute.Tensor, place, whole: cutlass.Constexpr[bool]):
        """Return a unit of a matrix, or the nearest one that is within its memory."""
        if cutlass.const_expr(not whole):
            place = self.unit_within(self.memory_of(gS), place)
        return device_memory(self.word, place)[0]

    @cute.jit
    def copy(self, gS: cute.Tensor, place, target, whole: cutlass.Constexpr[bool]):
        """Begin to copy a unit to shared memory; otherwise as `load`."""
        if cutlass.const_expr(not whole):
            place = self.unit_within(self.memory_of(gS), place)
        copy_async(target, place, self.unit)

    @cute.jit
    def memory_of(self, gS: cute.Tensor):
        """Return the addresses at which a matrix's memory begins and ends."""
        far = Int64(gS.stride[1]) * self.item * (gS.shape[1] - 1)
        begin = gS.iterator.toint()
        return begin + cutlass.min(far, Int64(0)), begin + cutlass.max(far, Int64(0)) + Int64(gS.shape[0]) * self.item

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
