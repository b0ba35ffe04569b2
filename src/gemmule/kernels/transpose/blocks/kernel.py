"""Permutations of short axes: blocks of several axes through shared memory.

Idea
    If the axes that are contiguous in source and target are short, a tile of two axes is a few bytes. A CTA moves a
    block of up to five axes: those that are contiguous in the source, and those that are contiguous in the target, as
    many elements of each as are predicted to be fastest. The block is read in the source's order and written in the
    target's, by vectors that may extend over several axes.
Data movement
    A thread has the offset of each of its accesses to a block, and the places of its elements in shared memory, in
    registers: they are the same for all blocks. Asynchronous copies read two blocks ahead; elements of 1 and 2 bytes
    whose vectors are shorter than a word are read into registers instead. The lanes of a warp compute the origins of 32
    blocks at once. Pitches in shared memory keep lanes in different banks. Blocks that would end beyond an axis begin
    earlier: nothing that is read needs a predicate, and what the neighbour moves is not written.
Limits
    Device memory, and in small problems the offsets that each CTA computes; with elements of 1 and 2 bytes the number
    of accesses.
Sources
    A. Lyakh, "An efficient tensor transpose algorithm for multicore CPU, Intel Xeon Phi, and NVidia Tesla GPU"; A.
    Hynninen and D. Lyakh, "cuTT: A High-Performance Tensor Transpose Library for CUDA Compatible GPUs".
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.async_copy import copy_async
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import packed
from gemmule.kernels.transpose.blocks.accesses import Accesses, half_beyond
from gemmule.kernels.transpose.blocks.block import AXES, BLOCK_AXES, stages_of
from gemmule.kernels.transpose.blocks.config import BlocksConfig
from gemmule.kernels.transpose.blocks.origins import block_origin, of_lane, strided
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import WARP, packed_rows


class BlocksTranspose(Accesses):
    """D = S element by element, both of any strides.

    Parameters
    ----------
    config : BlocksConfig
        Threads, and bytes of each.
    types : dict
        ``element``, an opaque type; ``read`` and ``write``, the bytes of an access to source and target;
        ``axes``, those of a block; ``skew``, whether vectors of the target have one: ``some`` or ``none``.
    """

    def __init__(self, config: BlocksConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.resident = config.resident
        self.stages = stages_of(self.read_bytes)
        # A word is an element if those are larger.
        self.pack = min(packed_rows(self.item), self.vectors[1])
        self.write_word = Uint32 if self.pack > 1 else self.element

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

        `mSource` and `mTarget` have the blocks along each axis as their extents. `numbers` are, of a block's axes in
        the source's order and in the target's, the divisors, extents, strides in memory and shared memory, and skews;
        of those in the target's order the coordinates that the last block leaves to its neighbour; of all axes the
        divisors and shifts, a block's extents, the elements that the last block begins earlier, and its bit; the
        accesses of a block to source and target, its bytes in shared memory, those before its first element in source
        and target, and the blocks.
        """
        order = cutlass.const_expr(5 * BLOCK_AXES)
        reading, writing, rest = numbers[:order], numbers[order : 2 * order], numbers[2 * order :]
        overlaps, outer, rest = rest[:BLOCK_AXES], rest[BLOCK_AXES:-6], rest[-6:]
        read_count, write_count, stage_bytes, before_source, before_target, blocks = rest
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        sT = SmemAllocator().allocate_tensor(self.element, cute.make_layout(self.threads), 16).iterator.toint()
        every = mSource, mTarget, outer, self.item
        # Offset of each access to the source, and its place in shared memory, two in a word; a bit for those of the
        # thread.
        sources = cute.make_rmem_tensor(cute.make_layout(self.reads), Uint32)
        sources.fill(0)
        puts = cute.make_rmem_tensor(cute.make_layout((self.reads + 1) // 2), Uint32)
        self.put_sources((sources, puts), (tid, read_count), (reading, before_source))
        is_read = self.bits_below(tid, read_count, self.reads)
        # Each lane has the origin of another one of the CTA's next blocks.
        lane = tid % WARP
        origins = block_origin(cta + lane * ctas, every)
        overlap_predecessor(tuple(mSource.iterator.toint() + Int64(sources[k]) for k in range(self.reads)))
        source, target = mSource.iterator.toint() - before_source, mTarget.iterator.toint() - before_target
        words = cute.make_rmem_tensor(cute.make_layout(self.reads), self.element)
        ahead = cutlass.const_expr(self.stages - 1)
        queue: tuple[Any, ...] = ()
        for s in cutlass.range_constexpr(ahead):
            read_at, write_at, edges = of_lane(origins, s)
            queue = (*queue, (write_at, edges))
            if cta + s * ctas < blocks:
                self.read((sources, puts, is_read), source + read_at, sT + s * stage_bytes, words)
            self.commit()
        # The same of each access to the target, and the place of each of its elements, two in a word.
        size = cutlass.const_expr(self.writes * self.vectors[1])
        targets = cute.make_rmem_tensor(cute.make_layout(self.writes), Uint32)
        gets = cute.make_rmem_tensor(cute.make_layout((size + 1) // 2), Uint32)
        owns = cute.make_rmem_tensor(cute.make_layout(self.axes), Uint32)
        owns.fill(0)
        self.put_targets((targets, gets, owns), (tid, write_count), (writing, before_target, overlaps))
        is_written = self.bits_below(tid, write_count, self.writes)
        block, number, stage = Int32(cta), Int32(ahead), Int32(0)
        next_stage = Int32(ahead)
        while block < blocks:
            if cutlass.const_expr(self.asynchronous):
                cute.arch.cp_async_wait_group(self.stages - 2)
            else:
                self.put_words((puts, is_read), sT + stage * stage_bytes, words)
            cute.arch.sync_threads()
            if number == WARP:
                number = Int32(0)
                origins = block_origin(block + (ahead + lane) * ctas, every)
            read_at, write_at, edges = of_lane(origins, number)
            queue = (*queue, (write_at, edges))
            write_at, edges = queue[0]
            if block + ahead * ctas < blocks:
                self.read((sources, puts, is_read), source + read_at, sT + next_stage * stage_bytes, words)
            self.commit()
            own = is_written
            for axis in cutlass.range_constexpr(self.axes):
                own &= owns[axis] if (edges & (1 << axis)) != 0 else Uint32(0xFFFFFFFF)
            self.write((targets, gets, own), target + write_at, sT + stage * stage_bytes)
            queue = queue[1:]
            number += 1
            block += ctas
            stage = stage + 1 if stage + 1 < self.stages else Int32(0)
            next_stage = next_stage + 1 if next_stage + 1 < self.stages else Int32(0)

    @cute.jit
    def commit(self):
        """Close the group of this block's copies."""
        if cutlass.const_expr(self.asynchronous):
            cute.arch.cp_async_commit_group()

    @cute.jit
    def read(self, accesses, origin, stage, words: cute.Tensor):
        """Begin to copy a thread's part of a block to shared memory, or read it into registers."""
        sources, puts, is_read = accesses
        for k in cutlass.range_constexpr(self.reads):
            if (is_read & (1 << k)) != 0:
                if cutlass.const_expr(self.asynchronous):
                    copy_async(half_beyond(stage, puts, k), origin + Int64(sources[k]), self.read_bytes)
                else:
                    words[k] = device_memory(self.element, origin + Int64(sources[k]))[0]

    @cute.jit
    def put_words(self, accesses, stage, words: cute.Tensor):
        """Store a thread's words to shared memory."""
        puts, is_read = accesses
        for k in cutlass.range_constexpr(self.reads):
            if (is_read & (1 << k)) != 0:
                place = self.shared(half_beyond(stage, puts, k))
                place[0] = words[k]

    @cute.jit
    def shared(self, address):
        """Return an element's place in shared memory."""
        place = cute.make_ptr(self.element, address, cute.AddressSpace.smem, assumed_align=self.item)
        return cute.make_tensor(place, cute.make_layout(1))

    @cute.jit
    def write(self, accesses, origin, stage):
        """Gather a thread's part of a block from shared memory, and write it."""
        targets, gets, own = accesses
        vector = cutlass.const_expr(self.vectors[1])
        for k in cutlass.range_constexpr(self.writes):
            if (own & (1 << k)) != 0:
                elements = cute.make_rmem_tensor(cute.make_layout((self.pack, vector // self.pack)), self.element)
                for e in cutlass.range_constexpr(vector):
                    number = cutlass.const_expr(k * vector + e)
                    elements[e] = self.shared(half_beyond(stage, gets, number))[0]
                words = cute.make_rmem_tensor(cute.make_layout(vector // self.pack), self.write_word)
                for w in cutlass.range_constexpr(vector // self.pack):
                    words[w] = (
                        elements[0, w] if cutlass.const_expr(self.pack == 1) else Uint32(packed(elements[None, w]))
                    )
                device_memory(self.write_word, origin + Int64(targets[k]), vector // self.pack).store(words.load())


def buildable(config: BlocksConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for a specialisation, with fake arguments."""
    tensors = [strided(types["element"]) for _ in range(2)]
    return Buildable(BlocksTranspose(config, types), (*tensors, (Int32(1),) * (11 * BLOCK_AXES + 5 * AXES + 6)))
