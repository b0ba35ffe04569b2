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
from gemmule.kernels.transpose.blocks.block import AXES
from gemmule.kernels.transpose.blocks.origins import block_origin, of_lane, strided
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import WARP, WORD
from gemmule.kernels.transpose.word_blocks.config import WordBlocksConfig
from gemmule.kernels.transpose.word_blocks.target_runs import TargetRuns
from gemmule.kernels.transpose.word_blocks.word_block import ENTRY, RUN_AXES


class WordBlocksTranspose(TargetRuns):
    """D = S element by element, of 1 or 2 bytes.

    Parameters
    ----------
    config : WordBlocksConfig
        Threads and stages.
    types : dict
        ``element``, an opaque type.
    """

    def __init__(self, config: WordBlocksConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.stages, self.resident = config.stages, config.resident

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
        order = cutlass.const_expr(5 * RUN_AXES)
        reading, writing, rest = numbers[:order], numbers[order : 2 * order], numbers[2 * order :]
        along, rest = rest[: 3 * RUN_AXES], rest[3 * RUN_AXES :]
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
            runs = (table, edge_table), targets, run
            if edges == 0:
                self.write(share, (begin, run), (places, stage_at), None)
                self.write_ends((tid, is_last, ends), runs, begin, stage_at, None)
            else:
                own = first if (edges & bit) != 0 else Int32(0), edges
                self.write(share, (begin, run), (places, stage_at), own)
                # Start of the run with both own elements and others.
                within_run = own[0] - own[0] // run * run
                inner = [self.place_along(within_run + e, along) for e in range(self.pack - 1)]
                self.write_ends((tid, is_last, ends), runs, begin, stage_at, (own, inner))
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


def buildable(config: WordBlocksConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for a specialisation, with fake arguments."""
    tensors = [strided(types["element"]) for _ in range(2)]
    return Buildable(
        WordBlocksTranspose(config, types), (*tensors, (Int32(1),) * (13 * RUN_AXES + 5 * AXES + 16 + WORD))
    )
