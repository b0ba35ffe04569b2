"""Runs of the target: their table in shared memory, and the words and ends that threads write."""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, cute

from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.parts.words import packed, shifted
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import WORD, packed_rows
from gemmule.kernels.transpose.word_blocks.config import WordBlocksConfig
from gemmule.kernels.transpose.word_blocks.word_block import ENTRY, RUN_AXES


class TargetRuns:
    """Base of the kernel that moves blocks by words; parameters as of WordBlocksTranspose."""

    def __init__(self, config: WordBlocksConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.pack = packed_rows(self.item)
        self.threads = config.threads

    @cute.jit
    def locate(self, number, axes):
        """Return the offset of a run in memory, its place, and bits of the axes that it does not own at the edge."""
        rest, offset, place, edges = Uint32(number), Int32(0), Int32(0), Int32(0)
        for axis in cutlass.range_constexpr(RUN_AXES - 1):
            divisor, extent, stride, pitch, overlap = (axes[RUN_AXES * k + axis] for k in range(5))
            above = Uint32(cute.arch.mul_hi(rest, Uint32(divisor)))
            coordinate = Int32(rest - above * Uint32(extent))
            rest = above
            offset += coordinate * stride
            place += coordinate * pitch
            edges |= overlap & 0xF if coordinate < (overlap >> 4) else Int32(0)
        return offset, place, edges

    @cute.jit
    def put_table(self, tables, tid, runs, axes):
        """Store what `locate` returns of each run, in order of the classes: their offsets modulo a word."""
        table, edge_table, cursors = tables
        count, part = runs
        for number in cutlass.range(tid, count, self.threads, unroll=1):
            offset, place, edges = self.locate(number, axes)
            cursor = cursors + (offset // self.item) % self.pack
            slot = cute.arch.atomic_add(cursor, Int32(1), sem="relaxed", scope="cta")
            entry = words_in_shared(table + slot * ENTRY, 2)
            entry[0] = Uint32(offset)
            entry[1] = Uint32(place)
            # The elements of other parts before this one.
            before = number % axes[RUN_AXES] * part
            edge = words_in_shared(edge_table + slot * WORD, 1)
            edge[0] = Uint32(edges | before << RUN_AXES)

    @cute.jit
    def put_places(self, places: cute.Tensor, word, run, along):
        """Store the places of the elements that a word may have, the first of them for a run that begins last."""
        for k in cutlass.range_constexpr(2 * self.pack - 1):
            element = cutlass.min(cutlass.max(word * self.pack + (k + 1 - self.pack), Int32(0)), run - 1)
            place = Uint32(self.place_along(element, along))
            if cutlass.const_expr(k % 2 == 0):
                places[k // 2] = place
            else:
                places[k // 2] = places[k // 2] | (place << 16)

    @cute.jit
    def place_along(self, element, along):
        """Return the place of an element of a run."""
        rest, place = Uint32(element), Int32(0)
        for axis in cutlass.range_constexpr(RUN_AXES):
            divisor, extent, pitch = (along[RUN_AXES * k + axis] for k in range(3))
            above = Uint32(cute.arch.mul_hi(rest, Uint32(divisor)))
            place += Int32(rest - above * Uint32(extent)) * pitch
            rest = above
        return place

    @cute.jit
    def write(self, share, memory, stage, own):
        """Gather a thread's words of runs from shared memory, and write them; `own` is None inside of a matrix.

        At the edge it has the first of a run's elements that the block owns, and the bits of edges.
        """
        (row, word, abreast, counts), classes, (table, edge_table) = share
        origin, run = memory
        for number in cutlass.range_constexpr(self.pack):
            # Runs of a class begin in the same place of a word.
            late = (Int32(origin & (WORD - 1)) // self.item + number) & (self.pack - 1)
            element = word * self.pack - late
            if element >= 0 and element + self.pack <= run:
                begin = classes[number] + row
                runs = table + begin * ENTRY, edge_table + begin * WORD, counts[number], abreast
                self.write_words(runs, origin + element * self.item, (self.places_of(stage, late), element), own)

    @cute.jit
    def write_words(self, runs, origin, word, own):
        """Write a thread's word of all runs of a class, which hold it; at the edge of those that own it."""
        (entries, edge_entries, count, abreast), (places, element) = runs, word
        entry_at, edge_at = Int32(entries), Int32(edge_entries)
        for _ in cutlass.range(count, unroll=4):
            entry = words_in_shared(entry_at, 2).load()
            is_own = Boolean(True)
            if cutlass.const_expr(own is not None):
                begin, is_own = self.owned(edge_at, own)
                is_own = is_own and element >= begin
                edge_at += abreast * WORD
            if is_own:
                whole = device_memory(Uint32, origin + Int64(entry[0]))
                whole[0] = Uint32(packed(self.gather(places, entry[1])))
            entry_at += abreast * ENTRY

    @cute.jit
    def owned(self, edge_at, own):
        """Return the first element of a run that the block owns, and whether it owns the run."""
        (first, edges), edge = own, Int32(words_in_shared(edge_at, 1)[0])
        return cutlass.max(first - (edge >> RUN_AXES), Int32(0)), (edge & edges) == 0

    @cute.jit
    def write_ends(self, thread, runs, origin, base, own):
        """Write the elements of runs' first or last words that have fewer: a thread of either, of many runs.

        At the edge the first word is that in which the elements begin that the block owns.
        """
        tid, is_last, places = thread
        (table, edge_table), count, run = runs
        step = -self.item if is_last else Int32(self.item)
        for number in cutlass.range(tid, 2 * count, self.threads, unroll=1):
            entry = words_in_shared(table + (number // 2) * ENTRY, 2).load()
            start, begin, is_own, inner = origin + Int64(entry[0]), Int32(0), Boolean(True), places
            if cutlass.const_expr(own is not None):
                at_edge, inner_places = own
                begin, is_own = self.owned(edge_table + (number // 2) * WORD, at_edge)
                inner = [
                    within if begin > 0 and not is_last else place
                    for within, place in zip(inner_places, places, strict=True)
                ]
            late = Int32(start & (WORD - 1)) // self.item
            # Elements of the first word; those of the last one are none of these.
            held = -(late + begin) & (self.pack - 1)
            if cutlass.const_expr(own is not None):
                left = run - begin - (held if is_last else Int32(0))
                held = cutlass.min((late + run) & (self.pack - 1) if is_last else held, left)
            elif is_last:
                held = (late + run) & (self.pack - 1)
            address = start + ((run - 1) * self.item if is_last else begin * self.item)
            if is_own:
                for e in cutlass.range_constexpr(self.pack - 1):
                    if e < held:
                        one = device_memory(self.element, address + e * step)
                        one[0] = self.shared(base + inner[e] + Int32(entry[1]))[0]

    @cute.jit
    def gather(self, places, place):
        """Return the elements of a run with such a place."""
        elements = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
        for e in cutlass.range_constexpr(self.pack):
            elements[e] = self.shared(places[e] + Int32(place))[0]
        return elements

    @cute.jit
    def places_of(self, stage, late):
        """Return the places of the elements of a thread's word in runs that begin so many elements late in a word."""
        places, base = stage
        # The first of the places is that of a run which begins last.
        skip = self.pack - 1 - late
        if cutlass.const_expr(self.pack == 4):
            words = [places[k + 1] if skip >= 2 else places[k] for k in range(3)]
            pairs = [shifted(words[k], words[k + 1], (skip & 1) * 16) for k in range(2)]
        else:
            pairs = [shifted(places[0], places[1], skip * 16)]
        return tuple(base + Int32(pair >> 16 if half else pair & 0xFFFF) for pair in pairs for half in range(2))

    @cute.jit
    def shared(self, address):
        """Return an element's place in shared memory."""
        place = cute.make_ptr(self.element, address, cute.AddressSpace.smem, assumed_align=self.item)
        return cute.make_tensor(place, cute.make_layout(1))


@cute.jit
def words_in_shared(address, count: cutlass.Constexpr[int]):
    """Return words of shared memory, whose address is a multiple of their size."""
    place = cute.make_ptr(Uint32, address, cute.AddressSpace.smem, assumed_align=WORD * count)
    return cute.make_tensor(place, cute.make_layout(count))
