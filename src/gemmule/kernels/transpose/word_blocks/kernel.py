"""Permutations of 1- and 2-byte elements whose runs begin anywhere: blocks of several axes, by words.

Idea
    As `transpose_blocks`, but runs of source and target are copied by the aligned words that hold them, wherever they
    begin. A thread has one word of a run of the target, and writes that word of many runs: the places of its elements
    in shared memory are in registers, for any beginning of a run within a word. The offsets of runs are in a table.
Data movement
    Bulk copies of the vectors that hold a run of the source read two blocks ahead, one for each run. In shared memory
    runs begin within vectors as they do in device memory. Words of the target are gathered and written whole; the
    elements of a run's first and last word, which may hold those of others, one by one.
Limits
    Device memory: sectors at both ends of a run are moved for others too.
Sources
    As of `transpose_blocks`.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.async_copy import copy_bulk_async
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.parts.words import packed, shifted
from gemmule.kernels.transpose.blocks.block import AXES, BLOCK_AXES
from gemmule.kernels.transpose.blocks.kernel import block_origin, of_lane, strided
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import WARP, WORD, packed_rows
from gemmule.kernels.transpose.word_blocks.config import WordBlocksConfig
from gemmule.kernels.transpose.word_blocks.word_block import ENTRY


class WordBlocksTranspose:
    """D = S element by element, of 1 or 2 bytes.

    Parameters
    ----------
    config : WordBlocksConfig
        Threads and stages.
    types : dict
        ``element``, an opaque type.
    """

    def __init__(self, config: WordBlocksConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.pack = packed_rows(self.item)
        self.threads, self.stages, self.resident = config.threads, config.stages, config.resident

    @cute.jit
    def __call__(self, mSource: cute.Tensor, mTarget: cute.Tensor, numbers: tuple[Int32, ...]):
        self.kernel(mSource, mTarget, numbers).launch(
            grid=(1, 1, 1),
            block=(self.threads, 1, 1),
            min_blocks_per_mp=self.resident,
            # Given, so that the compiler needs no driver.
            preferred_smem_carveout=100,
        )

    @cute.kernel
    def kernel(self, mSource: cute.Tensor, mTarget: cute.Tensor, numbers: tuple[Int32, ...]):
        """Move blocks.

        `mSource` and `mTarget` have the blocks along each axis as their extents. `numbers` are, of the axes that runs
        of the source and of the target lack, the divisors, extents, strides in memory and in shared memory, and the
        coordinates that the last block leaves to its neighbour; the divisors, extents and strides in shared memory of a
        run of the target; of all axes what `block_origin` takes; the runs of the source, and bytes of one; the runs of
        the target, their words, a divisor by those, runs at once, and elements of one; the first of those in the last
        block along its axis, the elements from a part of that axis to the next, and its bit; the first run of each
        class in the table, and the end; the bytes of the table and of a stage, the blocks, and the vectors and bytes to
        the end of the source's memory.
        """
        order = cutlass.const_expr(5 * BLOCK_AXES)
        reading, writing, rest = numbers[:order], numbers[order : 2 * order], numbers[2 * order :]
        along, rest = rest[: 3 * BLOCK_AXES], rest[3 * BLOCK_AXES :]
        outer, rest = rest[: 5 * AXES], rest[5 * AXES :]
        (sources, source_bytes), rest = rest[:2], rest[2:]
        (targets, words, divisor, abreast), (run, first, part, bit), rest = rest[:4], rest[4:8], rest[8:]
        classes, (table_bytes, stage_bytes, blocks, end_vectors, end_bytes) = rest[: 1 + WORD], rest[1 + WORD :]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        smem = SmemAllocator()
        full, cursors = smem.allocate_array(Int64, self.stages), smem.allocate_array(Int32, WORD)
        table = smem.allocate_tensor(self.element, cute.make_layout(self.threads), VECTOR_BYTES).iterator.toint()
        edge_table, stages = table + targets * ENTRY, table + table_bytes
        if tid == 0:
            for s in cutlass.range_constexpr(self.stages):
                # Each thread with a run of the source arrives.
                cute.arch.mbarrier_init(full + s, sources)
            cute.arch.mbarrier_init_fence()
            for number in cutlass.range_constexpr(WORD):
                cursors[number] = classes[number]
        cute.arch.sync_threads()
        self.put_table((table, edge_table, cursors), tid, (targets, part), writing)
        row = Int32(cute.arch.mul_hi(Uint32(tid), Uint32(divisor)))
        word = tid - row * words
        # Threads beyond the runs at once have none.
        row = row if row < abreast else targets
        # Runs of each class that a thread writes its word of.
        counts = [(classes[number + 1] - classes[number] - row + abreast - 1) // abreast for number in range(self.pack)]
        places = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
        self.put_places(places, word, run, along)
        # Every other thread writes the last elements of runs.
        is_last = tid % 2 == 1
        ends = [self.place_along(run - 1 - e if is_last else Int32(e), along) for e in range(self.pack - 1)]
        # As many runs of the source for each warp.
        lane = tid % WARP
        reader = lane * (self.threads // WARP) + tid // WARP
        read_offset, read_place, _ = self.locate(reader, reading)
        # Each lane has the origin of another one of the CTA's next blocks.
        every = mSource, mTarget, outer, self.item
        origins = block_origin(cta + lane * ctas, every)
        overlap_predecessor()
        source, target = mSource.iterator.toint() + Int64(read_offset), mTarget.iterator.toint()
        end = mSource.iterator.toint() + Int64(end_vectors) * VECTOR_BYTES + end_bytes
        cute.arch.sync_threads()
        ahead = cutlass.const_expr(self.stages - 1)
        queue: tuple[Any, ...] = ()
        for s in cutlass.range_constexpr(ahead):
            read_at, write_at, edges = of_lane(origins, s)
            queue = (*queue, (write_at, edges, self.within(mSource, read_at)))
            if cta + s * ctas < blocks and reader < sources:
                place = stages + s * stage_bytes + self.within(mSource, read_at) + read_place
                self.read((source + read_at, end), source_bytes, place, full + s)
        block, number, stage, phase = Int32(cta), Int32(ahead), Int32(0), Int32(0)
        next_stage = Int32(ahead)
        while block < blocks:
            cute.arch.mbarrier_wait(full + stage, phase)
            cute.arch.sync_threads()
            if number == WARP:
                number = Int32(0)
                origins = block_origin(block + (ahead + lane) * ctas, every)
            read_at, write_at, edges = of_lane(origins, number)
            queue = (*queue, (write_at, edges, self.within(mSource, read_at)))
            if block + ahead * ctas < blocks and reader < sources:
                place = stages + next_stage * stage_bytes + self.within(mSource, read_at) + read_place
                self.read((source + read_at, end), source_bytes, place, full + next_stage)
            write_at, edges, within = queue[0]
            share = (row, word, abreast, counts), classes, (table, edge_table)
            begin, stage_at = target + write_at, stages + stage * stage_bytes + within
            if edges == 0:
                self.write(share, (begin, Int32(0), run), (places, stage_at), None)
                self.write_ends((tid, is_last, ends), (table, targets, run), begin, stage_at)
            else:
                own = first if (edges & bit) != 0 else Int32(0)
                self.write(share, (begin, own, run), (places, stage_at), edges)
            queue = queue[1:]
            number += 1
            block += ctas
            stage += 1
            if stage == self.stages:
                stage = Int32(0)
                phase ^= 1
            next_stage = next_stage + 1 if next_stage + 1 < self.stages else Int32(0)

    def within(self, mSource: cute.Tensor, read_at):
        """Return the bytes between the beginning of a vector and a block's first element."""
        return Int32((mSource.iterator.toint() + read_at) & (VECTOR_BYTES - 1))

    @cute.jit
    def locate(self, number, axes):
        """Return the offset of a run in memory, its place, and bits of the axes that it does not own at the edge."""
        rest, offset, place, edges = Uint32(number), Int32(0), Int32(0), Int32(0)
        for axis in cutlass.range_constexpr(BLOCK_AXES - 1):
            divisor, extent, stride, pitch, overlap = (axes[BLOCK_AXES * k + axis] for k in range(5))
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
            before = number % axes[BLOCK_AXES] * part
            edge = words_in_shared(edge_table + slot * WORD, 1)
            edge[0] = Uint32(edges | before << BLOCK_AXES)

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
        for axis in cutlass.range_constexpr(BLOCK_AXES):
            divisor, extent, pitch = (along[BLOCK_AXES * k + axis] for k in range(3))
            above = Uint32(cute.arch.mul_hi(rest, Uint32(divisor)))
            place += Int32(rest - above * Uint32(extent)) * pitch
            rest = above
        return place

    @cute.jit
    def read(self, memory, nbytes, place, barrier: cute.Pointer):
        """Begin to copy the vectors that hold a run to shared memory, and arrive at a barrier for them."""
        origin, end = memory
        late = Int32(origin & (VECTOR_BYTES - 1))
        begin, size = origin - late, (late + nbytes + VECTOR_BYTES - 1) & -VECTOR_BYTES
        place -= late
        if begin + size > end:
            # The end of memory is in the last vector: its elements are copied one by one.
            size -= VECTOR_BYTES
            for offset in cutlass.range(size, late + nbytes, self.item, unroll=1):
                element = self.shared(place + offset)
                element[0] = device_memory(self.element, begin + offset)[0]
            # A later bulk copy into this stage writes by another proxy.
            cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, size)
        if size > 0:
            copy_bulk_async(place, begin, size, barrier)

    @cute.jit
    def write(self, share, memory, stage, edges):
        """Gather a thread's word of runs from shared memory, and write it; `edges` is None inside of a matrix."""
        (row, word, abreast, counts), classes, (table, edge_table) = share
        origin, first, run = memory
        for number in cutlass.range_constexpr(self.pack):
            # Runs of a class begin in the same place of a word.
            late = (Int32(origin & (WORD - 1)) // self.item + number) & (self.pack - 1)
            element = word * self.pack - late
            begin = classes[number] + row
            runs = table + begin * ENTRY, edge_table + begin * WORD, counts[number], abreast
            at = origin + element * self.item
            if cutlass.const_expr(edges is None):
                if element >= 0 and element + self.pack <= run:
                    self.write_words(runs, at, self.places_of(stage, late))
            elif element < run:
                self.write_parts(runs, at, (self.places_of(stage, late), element, first, run), edges)

    @cute.jit
    def write_words(self, runs, origin, places):
        """Write a thread's word of all runs of a class, which hold it."""
        entries, _, count, abreast = runs
        entry_at = Int32(entries)
        for _ in cutlass.range(count, unroll=4):
            entry = words_in_shared(entry_at, 2).load()
            whole = device_memory(Uint32, origin + Int64(entry[0]))
            whole[0] = Uint32(packed(self.gather(places, entry[1])))
            entry_at += abreast * ENTRY

    @cute.jit
    def write_parts(self, runs, origin, share, edges):
        """Write what a thread's word has of all own runs of a class at the edge."""
        entries, edge_entries, count, abreast = runs
        places, element, first, run = share
        entry_at, edge_at = Int32(entries), Int32(edge_entries)
        for _ in cutlass.range(count, unroll=1):
            entry = words_in_shared(entry_at, 2).load()
            edge = Int32(words_in_shared(edge_at, 1)[0])
            begin = cutlass.max(first - (edge >> BLOCK_AXES), Int32(0))
            if (edge & edges) == 0:
                elements, address = self.gather(places, entry[1]), origin + Int64(entry[0])
                for e in cutlass.range_constexpr(self.pack):
                    if element + e >= begin and element + e < run:
                        one = device_memory(self.element, address + e * self.item)
                        one[0] = elements[e]
            entry_at += abreast * ENTRY
            edge_at += abreast * WORD

    @cute.jit
    def write_ends(self, thread, runs, origin, base):
        """Write the elements of runs' first or last words that have fewer: a thread of either, of many runs."""
        tid, is_last, places = thread
        table, count, run = runs
        step = -self.item if is_last else Int32(self.item)
        for number in cutlass.range(tid, 2 * count, self.threads, unroll=1):
            entry = words_in_shared(table + (number // 2) * ENTRY, 2).load()
            begin = origin + Int64(entry[0])
            late = Int32(begin & (WORD - 1)) // self.item
            held = late + run if is_last else -late
            address = begin + ((run - 1) * self.item if is_last else Int32(0))
            for e in cutlass.range_constexpr(self.pack - 1):
                if e < (held & (self.pack - 1)):
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


def buildable(config: WordBlocksConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for a specialisation, with fake arguments."""
    tensors = [strided(types["element"]) for _ in range(2)]
    return Buildable(
        WordBlocksTranspose(config, types), (*tensors, (Int32(1),) * (13 * BLOCK_AXES + 5 * AXES + 16 + WORD))
    )
