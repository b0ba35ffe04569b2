"""Rung 17: rows that begin anywhere, kept in shared memory in the words that they lie in.

Idea
    Elements of 1 or 2 bytes that a thread reads alone are many requests, and shifting words into place is many
    instructions. Here the aligned words in which a row of the source lies go to shared memory as they are. Each row
    begins at another place in its words, but where is known, so that the elements of a word of the target are found
    there one by one: shared memory takes single bytes as fast as words.
Change from the rung before
    The source is read in whole words, 16 or 32 side by side; the gathering is from shared memory.
Data movement
    Every element is written once. A tile reads a word more than it needs of each row of the source, and, since a row of
    the target begins anywhere in a word or a sector, a few more rows than it writes elements of a row.
Limits
    The time from the launch to the first word that arrives, a barrier, and the reads from shared memory.
Sources
    "CUDA C++ Programming Guide", shared memory: words of 32 banks.
"""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.byte_tiles import packed_rows
from gemmule.core.spec import Buildable
from gemmule.parts.launch_order import begin_beside_launch_before
from gemmule.parts.tensors import cute_type, major_tensor
from gemmule.parts.words import packed, words_at

from .spec import UnshiftedConfig


class UnshiftedTranspose:
    """D[i, j, l] = S[i, j, l] for S with neighbours along i, and D with neighbours along j."""

    def __init__(self, config: UnshiftedConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.pack = packed_rows(self.item)
        self.lanes, self.words, self.threads, self.begin = config.lanes, config.words, config.threads, config.begin
        self.tile_i, self.held = config.tile_i(self.item), config.held(self.item)
        # Rows of the source from one word of a thread to its next, and rows of the target.
        self.step_j, self.step_i = self.threads // self.lanes, self.threads // self.words
        self.slots, self.pitch = config.slots(self.item), config.pitch

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor):
        words = cute.ceil_div(mS.shape[1] * self.item + (self.begin - self.item), 4)
        self.kernel(mS, mD).launch(
            grid=(cute.ceil_div(words, self.words), cute.ceil_div(mS.shape[0], self.tile_i), mS.shape[2]),
            block=(self.threads, 1, 1),
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor):
        tile_j, tile_i, batch = cute.arch.block_idx()
        gS, gD = (mX[None, None, batch, 0, 0] for mX in (mS, mD))
        rows = cutlass.const_expr(self.pack * self.slots)
        tile = SmemAllocator().allocate_tensor(Uint32, cute.make_layout(rows * self.pitch), 16)
        # The first row of the tile; it may come before the matrix does.
        i0, j0 = tile_i * self.tile_i, tile_j * (self.words * self.pack) - (self.begin // self.item - 1)
        self.read(gS, tile, i0, j0)
        cute.arch.sync_threads()
        self.write(gD, gS, tile, i0, j0)

    @cute.jit
    def read(self, gS: cute.Tensor, tile: cute.Tensor, i0, j0):
        """Bring the words in which the tile's rows lie into shared memory."""
        tid, _, _ = cute.arch.thread_idx()
        row, lane = tid // self.lanes, tid % self.lanes
        count = cutlass.const_expr(-(-self.held // self.step_j))
        start, line = (gS.iterator + i0).toint(), Int64(gS.stride[1]) * self.item
        begin, end, lowest, highest = self.ends(gS)
        places = []
        for p in cutlass.range_constexpr(count):
            # Rows outside of the matrix are its first or last once more; nobody writes them.
            j = cutlass.min(cutlass.max(j0 + row + p * self.step_j, 0), gS.shape[1] - 1)
            places.append(((start + line * j) & -4) + lane * 4)
        found = cute.make_rmem_tensor(cute.make_layout(count), Uint32)
        outside = Boolean(False)
        begin_beside_launch_before()
        for p in cutlass.range_constexpr(count):
            place = cutlass.min(cutlass.max(places[p], lowest), highest)
            outside = outside | (place != places[p])
            found[p] = self.at(Uint32, place)[0]
        for p in cutlass.range_constexpr(count):
            if cutlass.const_expr((p + 1) * self.step_j <= self.pack * self.slots) or (
                row + p * self.step_j < self.pack * self.slots
            ):
                tile[self.slot(row + p * self.step_j) * self.pitch + lane] = found[p]
        if outside:
            # A word that the matrix shares with what is in front of it or behind it is put together.
            for p in cutlass.range(count, unroll=1):
                j = cutlass.min(cutlass.max(j0 + row + p * self.step_j, 0), gS.shape[1] - 1)
                place = ((start + line * j) & -4) + lane * 4
                if (place < lowest or place > highest) and row + p * self.step_j < self.pack * self.slots:
                    word = Uint32(0)
                    for e in cutlass.range_constexpr(self.pack):
                        address = place + e * self.item
                        if address >= begin and address < end:
                            word = word | (Uint32(self.at(self.element, address)[0]) << (8 * self.item * e))
                    tile[self.slot(row + p * self.step_j) * self.pitch + lane] = word

    @cute.jit
    def ends(self, gS: cute.Tensor):
        """Return where the matrix's memory begins and ends, and the first and the last word that lie in it."""
        begin = gS.iterator.toint()
        far = Int64(gS.stride[1]) * self.item * (gS.shape[1] - 1)
        low, high = begin + cutlass.min(far, Int64(0)), begin + cutlass.max(far, Int64(0))
        end = high + Int64(gS.shape[0]) * self.item
        return low, end, (low + 3) & -4, (end & -4) - 4

    @cute.jit
    def slot(self, row):
        """Return where a row lies in the tile: those that one warp gathers from lie side by side."""
        return row % self.pack * self.slots + row // self.pack

    @cute.jit
    def write(self, gD: cute.Tensor, gS: cute.Tensor, tile: cute.Tensor, i0, j0):
        """Put the words of the target's rows together, and write them."""
        tid, _, _ = cute.arch.thread_idx()
        i, word = tid // self.words, tid % self.words
        line = gD.iterator + cute.crd2idx((i0 + i, 0), gD.layout)
        # Rows of the target that one thread writes begin at the same place in a word.
        ahead = self.begin // self.item - 1 - Int32(line.toint() & (self.begin - 1)) // self.item
        first = word * self.pack + ahead
        j, last = j0 + first, gD.shape[1] - 1
        start = (gS.iterator + i0).toint()
        places = []
        for e in cutlass.range_constexpr(self.pack):
            row = first + e
            # Where the row begins in its word.
            shift = Int32((start + Int64(gS.stride[1]) * self.item * (j0 + row)) & 3)
            places.append(tile.iterator.toint() + self.slot(row) * (4 * self.pitch) + shift + i * self.item)
        within = cutlass.min(gD.shape[0] - i0, self.tile_i)
        place = line + j
        for q in cutlass.range_constexpr(-(-self.tile_i // self.step_i)):
            if i + q * self.step_i < within:
                elements = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
                for e in cutlass.range_constexpr(self.pack):
                    source = cute.make_ptr(
                        self.element, places[e] + q * self.step_i * self.item, cute.AddressSpace.smem
                    )
                    elements[e] = cute.make_tensor(source, cute.make_layout(1))[0]
                if j >= 0 and j + self.pack - 1 <= last:
                    words_at(place, 1)[0] = Uint32(packed(elements))
                else:
                    for e in cutlass.range_constexpr(self.pack):
                        if j + e >= 0 and j + e <= last:
                            cute.make_tensor(place + e, cute.make_layout(1))[0] = elements[e]
            place += gD.stride[0] * self.step_i

    @cute.jit
    def at(self, kind: cutlass.Constexpr, address):
        """Return what lies at an address of device memory, as a tensor."""
        place = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=kind.width // 8)
        return cute.make_tensor(place, cute.make_layout(1))


def buildable(config: UnshiftedConfig, types: dict[str, str]) -> Buildable:
    """Return the kernel for that element size, with stand-ins for its arguments."""
    arguments = tuple(major_tensor(types["element"], unit, batch=3) for unit in (0, 1))
    return Buildable(UnshiftedTranspose(config, types), arguments)
