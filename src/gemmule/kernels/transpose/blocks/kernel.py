"""Permutations of short axes: blocks of several axes through shared memory.

Idea
    Where the axes that are contiguous in source and target are short, a tile of two axes is a few bytes. A CTA moves a
    block of up to four axes: those that are contiguous in the source, and those that are contiguous in the target, as
    many elements of each as make long runs on both sides. The block is read in the source's order and written in the
    target's.
Data movement
    A thread moves the same places of each block. It decodes them once, and then adds the origin of each block. The next
    block is in flight while the last one is written. Pitches in shared memory keep lanes in different banks. Blocks
    that would end beyond an axis begin earlier: no read is predicated, and what the neighbour moves is not written.
Limits
    Device memory; with elements of 1 and 2 bytes the number of accesses.
Sources
    A. Lyakh, "An efficient tensor transpose algorithm for multicore CPU, Intel Xeon Phi, and NVidia Tesla GPU"; A.
    Hynninen and D. Lyakh, "cuTT: A High-Performance Tensor Transpose Library for CUDA Compatible GPUs".
"""

from __future__ import annotations

import cutlass
from cutlass import Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.transpose.blocks.block import AXES, BLOCK_AXES, BlocksConfig
from gemmule.kernels.transpose.frame import device_memory

# The highest bits of both halves of a word.
_BORROWS = 0x80008000


class BlocksTranspose:
    """D = S element by element, both of any strides.

    Parameters
    ----------
    config : BlocksConfig
        Threads, and elements of each.
    types : dict
        ``element``, an opaque type.
    """

    def __init__(self, config: BlocksConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.threads, self.each = config.threads, config.each

    @cute.jit
    def __call__(
        self, mS: cute.Tensor, mD: cute.Tensor, mSource: cute.Tensor, mTarget: cute.Tensor, numbers: tuple[Int32, ...]
    ):
        self.kernel(mS, mD, mSource, mTarget, numbers).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(
        self, mS: cute.Tensor, mD: cute.Tensor, mSource: cute.Tensor, mTarget: cute.Tensor, numbers: tuple[Int32, ...]
    ):
        """Move blocks.

        `mS` and `mD` are a block's axes in the source's order and in the target's; `mSource` has all axes, `mTarget` as
        its extents those of a block. `numbers` are the pitches of the axes of `mS` and of `mD` in shared memory, the
        factors of coordinates along the axes of `mD`, and those along all axes, in a word of two halves.
        """
        pitches_read, pitches_write = numbers[:BLOCK_AXES], numbers[BLOCK_AXES : 2 * BLOCK_AXES]
        halves, all_halves = numbers[2 * BLOCK_AXES : 3 * BLOCK_AXES], numbers[3 * BLOCK_AXES :]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        sT = SmemAllocator().allocate_tensor(self.element, cute.make_layout(self.threads), 16).iterator.toint()
        volume, blocks = Int32(1), Int32(1)
        for axis in cutlass.range_constexpr(BLOCK_AXES):
            volume = volume * mS.shape[axis]
        found = []
        for axis in cutlass.range_constexpr(AXES):
            found.append((mSource.shape[axis] + mTarget.shape[axis] - 1) // mTarget.shape[axis])
            blocks = blocks * found[axis]
        counts = tuple(found)
        reads, puts, _ = self.places(mS, pitches_read, halves, tid, volume)
        writes, gets, coordinates = self.places(mD, pitches_write, halves, tid, volume)
        # Registers limit the CTAs of an SM: both places in shared memory have a half of a word.
        held = cute.make_rmem_tensor(cute.make_layout(self.each), Uint32)
        for p in cutlass.range_constexpr(self.each):
            held[p] = Uint32(puts[p]) | (Uint32(gets[p]) << 16)
        overlap_predecessor()
        source = mSource.iterator.toint() + self.lowest(mS)
        target = mTarget.iterator.toint() + self.lowest(mD)
        elements = cute.make_rmem_tensor(cute.make_layout(self.each), self.element)
        read_at, write_at, skipped = self.origin(cta, counts, mSource, mTarget, all_halves)
        self.read(source + read_at, reads, elements)
        block = Int32(cta)
        while block < blocks:
            for p in cutlass.range_constexpr(self.each):
                if tid + p * self.threads < volume:
                    place = self.shared(sT, held[p] & 0xFFFF)
                    place[0] = elements[p]
            cute.arch.sync_threads()
            at, before = target + write_at, skipped
            # Beyond the last block it is read again, and not written.
            block += ctas
            last = cutlass.min(block, blocks - 1)
            read_at, write_at, skipped = self.origin(last, counts, mSource, mTarget, all_halves)
            self.read(source + read_at, reads, elements)
            for p in cutlass.range_constexpr(self.each):
                # A half that is less than what the neighbour moves borrows from its highest bit.
                is_own = ((coordinates[p] - before) & _BORROWS) == _BORROWS
                if is_own and tid + p * self.threads < volume:
                    place = device_memory(self.element, at + Int64(writes[p]))
                    place[0] = self.shared(sT, held[p] >> 16)[0]
            cute.arch.sync_threads()

    @cute.jit
    def read(self, origin, reads: cute.Tensor, elements: cute.Tensor):
        """Read a thread's elements of a block."""
        for p in cutlass.range_constexpr(self.each):
            elements[p] = device_memory(self.element, origin + Int64(reads[p]))[0]

    @cute.jit
    def shared(self, sT, number):
        """Return a place in shared memory."""
        address = sT + Int32(number) * self.item
        return cute.make_tensor(cute.make_ptr(self.element, address, cute.AddressSpace.smem), cute.make_layout(1))

    @cute.jit
    def lowest(self, mBlock: cute.Tensor):
        """Return the offset in bytes of a block's lowest address, which is not its first where a stride is negative."""
        found = Int64(0)
        for axis in cutlass.range_constexpr(BLOCK_AXES):
            found += cutlass.min(mBlock.stride[axis], Int64(0)) * (mBlock.shape[axis] - 1)
        return found * self.item

    @cute.jit
    def places(self, mBlock: cute.Tensor, pitches: tuple[Int32, ...], halves: tuple[Int32, ...], tid, volume):
        """Return a thread's elements: offsets in bytes in device memory, places in shared memory, and coordinates.

        Places beyond the block are its last one.
        """
        coordinates = cute.make_rmem_tensor(cute.make_layout(self.each), Uint32)
        # Without a sign, so that 64 bits of an address need no second register of each.
        outer = cute.make_rmem_tensor(cute.make_layout(self.each), Uint32)
        lowest = Int32(self.lowest(mBlock))
        inner = cute.make_rmem_tensor(cute.make_layout(self.each), Int32)
        for p in cutlass.range_constexpr(self.each):
            rest = cutlass.min(tid + p * self.threads, volume - 1)
            out, held, halved = Int32(0), Int32(0), Uint32(_BORROWS)
            for axis in cutlass.range_constexpr(BLOCK_AXES):
                extent = mBlock.shape[axis]
                digit = rest
                if cutlass.const_expr(axis + 1 < BLOCK_AXES):
                    rest = rest // extent
                    digit = digit - rest * extent
                out += digit * Int32(mBlock.stride[axis])
                held += digit * pitches[axis]
                halved += Uint32(digit * halves[axis])
            outer[p] = Uint32(out * self.item - lowest)
            inner[p] = held
            coordinates[p] = halved
        return outer, inner, coordinates

    @cute.jit
    def origin(
        self, block, counts: tuple[Int32, ...], mSource: cute.Tensor, mTarget: cute.Tensor, halves: tuple[Int32, ...]
    ):
        """Return the offsets in bytes of a block in source and target, and the coordinates that a neighbour moves."""
        rest, read_at, write_at, skipped = Int32(block), Int64(0), Int64(0), Uint32(0)
        for axis in cutlass.range_constexpr(AXES):
            digit = rest
            if cutlass.const_expr(axis + 1 < AXES):
                rest = rest // counts[axis]
                digit = digit - rest * counts[axis]
            wanted = digit * mTarget.shape[axis]
            first = cutlass.min(wanted, mSource.shape[axis] - mTarget.shape[axis])
            skipped += Uint32((wanted - first) * halves[axis])
            read_at += first * mSource.stride[axis]
            write_at += first * mTarget.stride[axis]
        return read_at * self.item, write_at * self.item, skipped


def buildable(config: BlocksConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for a size of elements, with fake arguments."""
    tensors = [_strided(types["element"], rank) for rank in (BLOCK_AXES, BLOCK_AXES, AXES, AXES)]
    return Buildable(BlocksTranspose(config, types), (*tensors, (Int32(1),) * (3 * BLOCK_AXES + AXES)))


def _strided(name: str, rank: int) -> cute.Tensor:
    """Return a fake tensor of any strides, with extents of 32 bits."""
    extents, strides = tuple(cute.sym_int32() for _ in range(rank)), tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)
