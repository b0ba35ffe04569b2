"""Permutations of short axes: blocks of several axes through shared memory.

Idea
    Where the axes that are contiguous in source and target are short, a tile of two axes is a few bytes. A CTA moves a
    block of up to four axes: those that are contiguous in the source, and those that are contiguous in the target, as
    many elements of each as make long runs on both sides. The block is read in the source's order and written in the
    target's.
Data movement
    A thread moves elements of each block along one of its axes: it decodes its first place once, and adds strides. The
    lanes of a warp decode the origins of 32 blocks at once. The next block is in flight while the last one is written.
    Pitches in shared memory keep lanes in different banks. Blocks that would end beyond an axis begin earlier: nothing
    that is read needs a predicate, and what the neighbour moves is not written.
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

from gemmule.core.dtype import opaque_dtype
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type
from gemmule.kernels.parts.words import packed
from gemmule.kernels.transpose.blocks.block import AXES, BLOCK_AXES, BlocksConfig
from gemmule.kernels.transpose.frame import device_memory
from gemmule.kernels.transpose.tile_config import WARP, packed_rows

# The highest bits of both halves of a word.
_BORROWS = 0x80008000


class BlocksTranspose:
    """D = S element by element, both of any strides.

    Parameters
    ----------
    config : BlocksConfig
        Threads, and elements of each.
    types : dict
        ``element``, an opaque type; ``read`` and ``write``, the bytes of an access to source and target.
    """

    def __init__(self, config: BlocksConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.threads = config.threads
        # Accesses of a thread to source and target, and elements of one to the target.
        self.reads, self.writes = (config.count(int(types[way])) for way in ("read", "write"))
        self.vector = int(types["write"]) // self.item
        self.read_word = cute_type(opaque_dtype(int(types["read"])).name)
        # A word is an element if those are larger.
        self.pack = min(packed_rows(self.item), self.vector)
        self.write_word = Uint32 if self.pack > 1 else self.element

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

        `mS` and `mD` are a block's axes in the source's order and in the target's, but for that which a thread moves
        elements along, which is the last; `mSource` has all axes, `mTarget` as its extents those of a block. `numbers`
        are the pitches of the axes of `mS` and of `mD` in shared memory, the factors of coordinates along the axes of
        `mD`, and those along all axes, in a word of two halves; and the bytes of a block in shared memory.
        """
        pitches_read, pitches_write = numbers[:BLOCK_AXES], numbers[BLOCK_AXES : 2 * BLOCK_AXES]
        halves, all_halves = numbers[2 * BLOCK_AXES : 3 * BLOCK_AXES], numbers[3 * BLOCK_AXES : -1]
        # Shared memory holds two blocks: what is read of one does not wait for what is written of the other.
        stage, stages = Int32(0), numbers[-1]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        sT = SmemAllocator().allocate_tensor(self.element, cute.make_layout(self.threads), 16).iterator.toint()
        blocks = Int32(1)
        found = []
        for axis in cutlass.range_constexpr(AXES):
            found.append((mSource.shape[axis] + mTarget.shape[axis] - 1) // mTarget.shape[axis])
            blocks = blocks * found[axis]
        counts = tuple(found)
        read_first, put, read_count, _ = self.place(mS, (pitches_read, halves), tid, self.reads)
        write_first, get, write_count, coordinates = self.place(mD, (pitches_write, halves), tid, self.writes)
        last = cutlass.const_expr(BLOCK_AXES - 1)
        put_step, get_step, half = pitches_read[last] * self.item, pitches_write[last] * self.item, Uint32(halves[last])
        read_step, write_step = Int64(mS.stride[last]) * self.item, Int64(mD.stride[last]) * self.item
        overlap_predecessor()
        source, target = mSource.iterator.toint() + read_first, mTarget.iterator.toint() + write_first
        words = cute.make_rmem_tensor(cute.make_layout(self.reads), self.read_word)
        # From an element of an access to the next, in shared memory.
        apart = pitches_write[0] // self.vector * self.item
        # Each lane has the origin of another one of the CTA's next blocks.
        lane = tid % WARP
        block, number = Int32(cta), Int32(0)
        reads, writes, skips = self.origin(block + lane * ctas, counts, mSource, mTarget, all_halves)
        read_at, write_at, skipped = self.of_lane((reads, writes, skips), number)
        self.read(source + read_at, (read_step, read_count), words)
        while block < blocks:
            held = sT + stage + put * self.item
            for p in cutlass.range_constexpr(self.reads):
                if p < read_count:
                    place = self.shared(self.read_word, held)
                    place[0] = words[p]
                held += put_step
            cute.arch.sync_threads()
            at, before = target + write_at, skipped
            block += ctas
            number = (number + 1) % WARP
            if number == 0:
                reads, writes, skips = self.origin(block + lane * ctas, counts, mSource, mTarget, all_halves)
            read_at, write_at, skipped = self.of_lane((reads, writes, skips), number)
            if block < blocks:
                self.read(source + read_at, (read_step, read_count), words)
            # Sums in turn, as multiples of the steps would take a register each.
            held, own = sT + stage + get * self.item, coordinates - before
            for p in cutlass.range_constexpr(self.writes):
                # A half that is less than what the neighbour moves borrows from its highest bit.
                if (own & _BORROWS) == _BORROWS and p < write_count:
                    self.write(at, held, apart)
                held, at, own = held + get_step, at + write_step, own + half
            stage = stages - stage

    def of_lane(self, values, lane):
        """Return values of one of the warp's lanes."""
        return tuple(cute.arch.shuffle_sync(value, lane) for value in values)

    @cute.jit
    def read(self, origin, steps, words: cute.Tensor):
        """Read a thread's words of a block; `steps` are the bytes from one to the next, and their count."""
        for p in cutlass.range_constexpr(self.reads):
            if p < steps[1]:
                words[p] = device_memory(self.read_word, origin)[0]
            origin += steps[0]

    @cute.jit
    def shared(self, kind: cutlass.Constexpr, address):
        """Return a place in shared memory."""
        place = cute.make_ptr(kind, address, cute.AddressSpace.smem, assumed_align=kind.width // 8)
        return cute.make_tensor(place, cute.make_layout(1))

    @cute.jit
    def write(self, target, address, apart):
        """Write elements to the target, which are so many bytes apart in shared memory."""
        elements = cute.make_rmem_tensor(cute.make_layout((self.pack, self.vector // self.pack)), self.element)
        for e in cutlass.range_constexpr(self.vector):
            elements[e] = self.shared(self.element, address + e * apart)[0]
        words = cute.make_rmem_tensor(cute.make_layout(self.vector // self.pack), self.write_word)
        for w in cutlass.range_constexpr(self.vector // self.pack):
            words[w] = elements[0, w] if cutlass.const_expr(self.pack == 1) else Uint32(packed(elements[None, w]))
        device_memory(self.write_word, target, self.vector // self.pack).store(words.load())

    @cute.jit
    def place(self, mBlock: cute.Tensor, factors: tuple[tuple[Int32, ...], ...], tid, each: cutlass.Constexpr[int]):
        """Return a thread's first access: its offset in bytes, place in shared memory, how many there are, coordinates.

        `factors` are those of coordinates in shared memory, and in a word of two halves.
        """
        pitches, halves = factors
        rest, out, held, halved = Int32(tid), Int64(0), Int32(0), Uint32(_BORROWS)
        for axis in cutlass.range_constexpr(BLOCK_AXES):
            extent, digit = mBlock.shape[axis], rest
            if cutlass.const_expr(axis + 1 < BLOCK_AXES):
                rest = rest // extent
                digit = digit - rest * extent
            else:
                # Parts of the axis, of almost one size.
                parts = (extent + each - 1) // each
                part = (extent + parts - 1) // parts
                digit = rest * part
                count = cutlass.min(part, extent - digit)
            out += Int64(digit) * mBlock.stride[axis]
            held += digit * pitches[axis]
            halved += Uint32(digit * halves[axis])
        return out * self.item, held, count, halved

    @cute.jit
    def origin(
        self, block, counts: tuple[Int32, ...], mSource: cute.Tensor, mTarget: cute.Tensor, halves: tuple[Int32, ...]
    ):
        """Return the offsets in bytes of a block in source and target, and the coordinates that a neighbour moves."""
        rest, read_at, write_at, skipped = Int32(block), Int64(0), Int64(0), Uint32(0)
        for axis in cutlass.range_constexpr(AXES):
            digit = rest
            rest = rest // counts[axis]
            digit = digit - rest * counts[axis]
            wanted = digit * mTarget.shape[axis]
            first = cutlass.min(wanted, mSource.shape[axis] - mTarget.shape[axis])
            skipped += Uint32((wanted - first) * halves[axis])
            read_at += first * mSource.stride[axis]
            write_at += first * mTarget.stride[axis]
        return read_at * self.item, write_at * self.item, skipped


def buildable(config: BlocksConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for a specialisation, with fake arguments."""
    tensors = [_strided(types["element"], rank) for rank in (BLOCK_AXES, BLOCK_AXES, AXES, AXES)]
    return Buildable(BlocksTranspose(config, types), (*tensors, (Int32(1),) * (3 * BLOCK_AXES + AXES + 1)))


def _strided(name: str, rank: int) -> cute.Tensor:
    """Return a fake tensor of any strides, with extents of 32 bits."""
    extents, strides = tuple(cute.sym_int32() for _ in range(rank)), tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(cute_type(name), extents, strides)
