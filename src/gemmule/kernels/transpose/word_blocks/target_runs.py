"""Runs of the target: their table in shared memory, and the words and ends that threads write."""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, cute

from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.parts.words import packed, shifted
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import SECTOR, WORD, packed_rows
from gemmule.kernels.transpose.word_blocks.config import WordBlocksConfig
from gemmule.kernels.transpose.word_blocks.word_block import ENTRY, RUN_AXES


class TargetRuns:
    """Base of the kernel that moves blocks by words; parameters as of WordBlocksTranspose."""

    def __init__(self, config: WordBlocksConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.pack = packed_rows(self.item)
        # Words of a run that a thread has.
        self.threads, self.chunks = config.threads, int(types["chunks"])
        self.is_shared = types["shared"] == "some"

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
    def put_table(self, tables, tid, count, axes):
        """Store what `locate` returns of each run, in order of the classes: their offsets modulo a word."""
        table, edge_table, cursors = tables
        for number in cutlass.range(tid, count, self.threads, unroll=1):
            offset, place, edges = self.locate(number, axes)
            cursor = cursors + (offset // self.item) % self.pack
            slot = cute.arch.atomic_add(cursor, Int32(1), sem="relaxed", scope="cta")
            entry = words_in_shared(table + slot * ENTRY, 2)
            entry[0] = Uint32(offset)
            entry[1] = Uint32(place)
            edge = words_in_shared(edge_table + slot * WORD, 1)
            edge[0] = Uint32(edges)

    @cute.jit
    def put_places(self, places: cute.Tensor, word, run, along):
        """Store the places of the elements that each word may have, the first of them for a run that begins last."""
        for chunk in cutlass.range_constexpr(self.chunks):
            self.put_word_places(places[None, chunk], word + chunk * self.threads, run, along)

    @cute.jit
    def put_word_places(self, places: cute.Tensor, word, run, along):
        """Store the places of the elements that a word may have."""
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
    def write(self, share, origin, stage, own):
        """Gather a thread's words of runs from shared memory, and write those that are own.

        `own` has the first of a run's elements that the block owns, if it is the first block along the run, and the
        first that the next one does, if it is not the last; whether it is either; and bits of edges, or None.
        """
        (row, word, abreast, counts), classes, (table, edge_table) = share
        places, base = stage
        for number in cutlass.range_constexpr(self.pack):
            # Runs of a class begin in the same place of a word.
            late = (Int32(origin & (WORD - 1)) // self.item + number) & (self.pack - 1)
            begin = classes[number] + row
            runs = table + begin * ENTRY, edge_table + begin * WORD, counts[number], abreast
            firsts = [(word + chunk * self.threads) * self.pack - late for chunk in range(self.chunks)]
            if cutlass.const_expr(self.is_shared):
                held = [self.places_of((places[None, c], base), late) for c in range(self.chunks)]
                self.write_words(runs, origin, [(held[c], firsts[c] * self.item) for c in range(self.chunks)], own)
            else:
                for chunk in cutlass.range_constexpr(self.chunks):
                    self.write_chunk(runs, origin, (places[None, chunk], base, late, firsts[chunk]), own)

    @cute.jit
    def write_chunk(self, runs, origin, word, own):
        """Write a thread's word of all runs of a class, which hold it or not."""
        places, base, late, first = word
        if first >= 0 and first + self.pack <= own[0][1]:
            self.write_words(runs, origin, [(self.places_of((places, base), late), first * self.item)], own)

    @cute.jit
    def write_words(self, runs, origin, words, own):
        """Write a thread's words of all runs of a class."""
        (entries, edge_entries, count, abreast), (bounds, edges) = runs, own
        entry_at, edge_at, low = Int32(entries), Int32(edge_entries), Int32(origin & (SECTOR - 1))
        for _ in cutlass.range(count, unroll=max(4 // self.chunks, 1)):
            entry = words_in_shared(entry_at, 2).load()
            begin, end = bounds[0] * self.item, bounds[1] * self.item
            if cutlass.const_expr(self.is_shared):
                begin, end = self.owned(low + Int32(entry[0]), bounds)
            is_run_own = self.owns_run(edge_at, edges)
            edge_at += abreast * WORD
            for chunk in cutlass.range_constexpr(len(words)):
                offset = words[chunk][1]
                is_own = is_run_own
                # Words of whole runs are known to be within them.
                if cutlass.const_expr(self.is_shared):
                    is_own = is_own and offset >= begin and offset + WORD <= end
                elif cutlass.const_expr(edges is not None):
                    is_own = is_own and offset >= begin
                self.write_word(is_own, origin + Int64(entry[0]), entry[1], words[chunk])
            entry_at += abreast * ENTRY

    @cute.jit
    def write_word(self, is_own, origin, place, word):
        """Write a word of a run with such a place, if it is own."""
        if is_own:
            places, offset = word
            whole = device_memory(Uint32, origin + offset)
            whole[0] = Uint32(packed(self.gather(places, place)))

    @cute.jit
    def owned(self, address, bounds):
        """Return the bytes of a run at an address that the block owns: from one on, and before another."""
        first, end, is_head, is_tail = bounds
        begin, beyond = first * self.item, end * self.item
        # As far as the next sector: 0 where runs begin or end with it.
        begin += Int32(0) if is_head else -(address + begin) & (SECTOR - 1)
        beyond += Int32(0) if is_tail else -(address + beyond) & (SECTOR - 1)
        return begin, beyond

    @cute.jit
    def owns_run(self, edge_at, edges):
        """Return whether the block owns a run; `edges` is None inside of a matrix."""
        found = Boolean(True)
        if cutlass.const_expr(edges is not None):
            found = (Int32(words_in_shared(edge_at, 1)[0]) & edges) == 0
        return found

    @cute.jit
    def write_ends(self, thread, runs, origin, base, own):
        """Write the elements of runs' first or last words that have fewer: a thread of either, of many runs."""
        (tid, is_last, places), ((begin, _, is_head, is_tail), edges) = thread, own
        (table, edge_table), count, run = runs
        step = -self.item if is_last else Int32(self.item)
        # All threads skip the ends of runs that go on in other blocks.
        for number in cutlass.range(tid, 2 * count if is_head or is_tail else Int32(0), self.threads, unroll=1):
            entry = words_in_shared(table + (number // 2) * ENTRY, 2).load()
            start = origin + Int64(entry[0])
            late = Int32(start & (WORD - 1)) // self.item
            # Elements of the first word; those of the last one are none of these.
            head = -(late + begin) & (self.pack - 1)
            left = run - begin - (head if is_last else Int32(0))
            held = cutlass.min((late + run) & (self.pack - 1) if is_last else head, left)
            address = start + ((run - 1) * self.item if is_last else begin * self.item)
            if (is_tail if is_last else is_head) and self.owns_run(edge_table + (number // 2) * WORD, edges):
                for e in cutlass.range_constexpr(self.pack - 1):
                    if e < held:
                        one = device_memory(self.element, address + e * step)
                        one[0] = self.shared(base + places[e] + Int32(entry[1]))[0]

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
