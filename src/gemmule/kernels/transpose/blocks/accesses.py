"""Accesses of a thread to a block: their offsets in memory, and the places of their elements in shared memory."""

from __future__ import annotations

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.transpose.blocks.block import BLOCK_AXES
from gemmule.kernels.transpose.blocks.config import BlocksConfig
from gemmule.kernels.transpose.tile_config import WORD


class Accesses:
    """Base of the kernel that moves blocks; parameters as of BlocksTranspose."""

    def __init__(self, config: BlocksConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.threads = config.threads
        self.read_bytes, write_bytes = int(types["read"]), int(types["write"])
        # Accesses of a thread to source and target, and elements of them.
        self.reads, self.writes = config.count(self.read_bytes), config.count(write_bytes)
        # Narrower words are read into registers.
        self.asynchronous = self.read_bytes >= WORD
        self.vectors = self.read_bytes // self.item, write_bytes // self.item
        self.axes, self.is_skewed = int(types["axes"]), types["skew"] == "some"

    @cute.jit
    def bits_below(self, tid, count, accesses: cutlass.Constexpr[int]):
        """Return the bits of a thread's accesses, of so many of all threads."""
        found = Uint32(0)
        for k in cutlass.range_constexpr(accesses):
            found |= Uint32(1 << k) if tid + k * self.threads < count else Uint32(0)
        return found

    @cute.jit
    def put_sources(self, accesses, thread, where):
        """Store the offsets of a thread's accesses to the source, and their places in shared memory."""
        tid, count = thread
        for k in cutlass.range_constexpr(self.reads):
            # All threads skip what none of them accesses; those that read into registers have none left for that.
            if cutlass.const_expr(not self.asynchronous) or k * self.threads < count:
                self.put_source(accesses, k, tid, where)

    @cute.jit
    def put_source(self, accesses, k: cutlass.Constexpr[int], tid, where):
        """Store the offset of an access to the source, and its place."""
        (sources, puts), (order, before) = accesses, where
        coordinates = self.coordinates((tid + k * self.threads) * self.vectors[0], order)
        offset, place = self.offsets(coordinates, order, self.axes)
        sources[k] = Uint32(offset + before)
        put_half(puts, k, place)

    @cute.jit
    def put_targets(self, accesses, thread, where):
        """Store the same of accesses to the target, the places of their elements, and bits of those that are own."""
        tid, count = thread
        for k in cutlass.range_constexpr(self.writes):
            if cutlass.const_expr(not self.asynchronous) or k * self.threads < count:
                self.put_target(accesses, k, tid, where)

    @cute.jit
    def put_target(self, accesses, k: cutlass.Constexpr[int], tid, where):
        """Store the same of an access to the target."""
        (targets, gets, owns), (order, before, overlaps) = accesses, where
        vector = cutlass.const_expr(self.vectors[1])
        first = (tid + k * self.threads) * vector
        coordinates = self.coordinates(first, order)
        offset, place = self.offsets(coordinates, order, 1)
        targets[k] = Uint32(offset + before)
        put_half(gets, k * vector, place)
        for axis in cutlass.range_constexpr(self.axes):
            owns[axis] |= Uint32(1 << k) if coordinates[axis] >= overlaps[axis] else Uint32(0)
        if cutlass.const_expr(vector > 1):
            self.put_places((gets, k * vector), first, (coordinates[0], place), order)

    @cute.jit
    def put_places(self, halves, first, known, order: tuple[Int32, ...]):
        """Store the places of a vector's elements but the first, of which the first coordinate and place are known."""
        (gets, number), (coordinate, place) = halves, known
        vector, extent, pitch = cutlass.const_expr(self.vectors[1]), order[BLOCK_AXES], order[3 * BLOCK_AXES]
        if extent % vector == 0:
            # All along the first axis.
            for e in cutlass.range_constexpr(1, vector):
                put_half(gets, number + e, place + e * pitch)
        elif cutlass.const_expr(not self.asynchronous) or extent < vector:
            # Vectors hold the first axis some times over where it is a power of 2.
            mask = extent - 1 if extent & (extent - 1) == 0 else Int32(0)
            other = place
            for e in cutlass.range_constexpr(1, vector):
                if cutlass.const_expr(not self.asynchronous) or e & mask == 0:
                    _, other = self.offsets(self.coordinates(first + e, order), order, 1)
                else:
                    other = other + pitch
                put_half(gets, number + e, other)
        else:
            # Those beyond the end of the first axis are at its beginning, where the next ones are not 0.
            left = extent - coordinate
            _, beyond = self.offsets(self.coordinates(first + left, order), order, 1)
            for e in cutlass.range_constexpr(1, vector):
                before = place + self.along(coordinate + e, order) - self.along(coordinate, order)
                other = beyond + self.along(e - left, order)
                put_half(gets, number + e, before if e < left else other)

    @cute.jit
    def along(self, coordinate, order: tuple[Int32, ...]):
        """Return the bytes in shared memory to a coordinate along the target's first axis."""
        found = coordinate * order[3 * BLOCK_AXES]
        if cutlass.const_expr(self.is_skewed):
            found += (coordinate >> (self.vectors[1].bit_length() - 1)) * order[4 * BLOCK_AXES]
        return found

    @cute.jit
    def coordinates(self, element, order: tuple[Int32, ...]):
        """Return the coordinates of an element of a block along its axes in an order."""
        rest, found = Uint32(element), []
        for axis in cutlass.range_constexpr(self.axes - 1):
            above = Uint32(cute.arch.mul_hi(rest, Uint32(order[axis])))
            found.append(Int32(rest - above * Uint32(order[BLOCK_AXES + axis])))
            rest = above
        return (*found, Int32(rest))

    @cute.jit
    def offsets(self, coordinates, order: tuple[Int32, ...], skewed: cutlass.Constexpr[int]):
        """Return the offsets in bytes of an element in memory and in shared memory."""
        memory, shared = Int32(0), Int32(0)
        for axis in cutlass.range_constexpr(len(coordinates)):
            memory += coordinates[axis] * order[2 * BLOCK_AXES + axis]
            shared += coordinates[axis] * order[3 * BLOCK_AXES + axis]
            # In the target's order only the first axis has a skew.
            if cutlass.const_expr(self.is_skewed and axis < skewed):
                shared += (coordinates[axis] >> (self.vectors[1].bit_length() - 1)) * order[4 * BLOCK_AXES + axis]
        return memory, shared


@cute.jit
def put_half(words: cute.Tensor, number: cutlass.Constexpr[int], value):
    """Store a number of 16 bits as a half of a word, the lower half first."""
    if cutlass.const_expr(number % 2 == 0):
        words[number // 2] = Uint32(value)
    else:
        words[number // 2] = words[number // 2] | (Uint32(value) << 16)


@cute.jit
def half_beyond(base, words: cute.Tensor, number: cutlass.Constexpr[int]):
    """Return a base plus a half of a word: as a whole, so that no half has a register of its own."""
    extract = cutlass.const_expr("shr.u32 half, {$r1}, 16;" if number % 2 else "and.b32 half, {$r1}, 0xffff;")
    return cute.arch.inline_ptx(
        f"{{{{ .reg .b32 half; {extract} add.s32 {{$w0}}, {{$r0}}, half; }}}}",
        write_only_types=[Int32],
        read_only_args=[base, words[number // 2]],
    )
