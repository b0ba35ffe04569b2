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
from cutlass import Int32, Uint32, cute
from cutlass.memory import SmemAllocator

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.tensors import cute_type, major_tensor
from gemmule.kernels.parts.words import packed, words_at
from gemmule.kernels.transpose.byte_tile_config import packed_rows

from .spec import UnshiftedConfig


class UnshiftedTranspose:
    """D[i, j, l] = S[i, j, l] for S with neighbours along i, and D with neighbours along j."""

    def __init__(self, config: UnshiftedConfig, types: dict[str, str]) -> None:
        self.element = cute_type(types["element"])
        self.item = self.element.width // 8
        self.pack = packed_rows(self.item)
        self.lanes, self.words, self.threads, self.begin = config.lanes, config.words, config.threads, config.begin
        self.tile_i = config.tile_i(self.item)
        # Rows of the source from one word of a thread to its next, and rows of the target.
        self.step_j, self.step_i = self.threads // self.lanes, self.threads // self.words
        # Rows of the source in the tile, of a kind and all, and those that a thread reads a word of.
        self.slots, self.pitch = config.slots(self.item), config.pitch
        self.rows, self.kind = self.pack * self.slots, config.kind(self.item)
        self.count = -(-self.rows // self.step_j)

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
        tid, _, _ = cute.arch.thread_idx()
        gS, gD = (mX[None, None, batch, 0, 0] for mX in (mS, mD))
        tile = SmemAllocator().allocate_tensor(Uint32, cute.make_layout(self.pack * self.kind), 16)
        i0, last = tile_i * self.tile_i, gS.shape[1] - 1
        # The first row of the tile; it may come before the matrix does.
        j0 = tile_j * (self.words * self.pack) - (self.begin // self.item - 1)

        # Bytes from the word in which the matrix begins: to the tile's place in a row, and from a row to the next.
        origin = gS.iterator.toint() & -4
        head, line = Int32(gS.iterator.toint() - origin), Int32(gS.stride[1]) * self.item
        # Where the memory begins and ends, and the first and the last word all of which lies in it.
        begin, end = head + cutlass.min(line * last, 0), head + cutlass.max(line * last, 0) + gS.shape[0] * self.item
        lowest, highest = (begin + 3) & -4, (end & -4) - 4
        head += i0 * self.item

        row, lane = tid // self.lanes, tid % self.lanes
        places = []
        for p in cutlass.range_constexpr(self.count):
            # Rows outside of the matrix are its first or last once more; nobody writes them.
            j = cutlass.min(cutlass.max(j0 + row + p * self.step_j, 0), last)
            wanted = ((head + line * j) & -4) + lane * 4
            places.append(origin + cutlass.min(cutlass.max(wanted, lowest), highest))
        # A word that the memory shares with what is in front of it or behind it is put together by who would read it.
        is_first = i0 + lane == 0
        far = (0 if is_first else last) if line > 0 else (last if is_first else 0)
        shared, held = (begin if is_first else end) & -4, far - j0
        at_end = shared == ((head + line * far) & -4) + lane * 4
        at_end = at_end & (held >= 0) & (held < self.rows) & (held % self.step_j == row)

        overlap_predecessor(tuple(places))
        ends = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
        ends.fill(self.element(0))
        if at_end:
            for e in cutlass.range_constexpr(self.pack):
                byte = shared + e * self.item
                if byte >= begin and byte < end:
                    ends[e] = self.at(self.element, origin + byte)[0]
        found = cute.make_rmem_tensor(cute.make_layout(self.count), Uint32)
        for p in cutlass.range_constexpr(self.count):
            found[p] = self.at(Uint32, places[p])[0]

        i, word = tid // self.words, tid % self.words
        target = gD.iterator + cute.crd2idx((i0 + i, 0), gD.layout)
        # Rows of the target that one thread writes begin at the same place in a word.
        first = word * self.pack + (self.begin // self.item - 1) - Int32(target.toint() & (self.begin - 1)) // self.item
        # Where the elements of a word lie in the tile: each row begins at another place in its words.
        sources = []
        for e in cutlass.range_constexpr(self.pack):
            begins = (head + line * (j0 + first + e)) & 3
            start = 4 * self.start(first + e) + begins + i * self.item
            sources.append(tile.iterator.toint() + start)

        for p in cutlass.range_constexpr(self.count):
            self.put(tile, row + p * self.step_j, lane, found[p], (p + 1) * self.step_j <= self.rows)
        if at_end:
            self.put(tile, held, lane, packed(ends), True)
        cute.arch.sync_threads()
        self.write(gD, target, sources, i, i0, j0 + first)

    @cute.jit
    def start(self, row):
        """Return the word of the tile that a row begins with: those that one warp gathers from lie side by side."""
        return row % self.pack * self.kind + row // self.pack * self.pitch

    @cute.jit
    def put(self, tile: cute.Tensor, row, lane, word, is_held: cutlass.Constexpr[bool]):
        """Put a word of a row into the tile; not every thread's last row is held, unless the caller knows better."""
        if is_held or row < self.rows:
            tile[self.start(row) + lane] = word

    @cute.jit
    def write(self, gD: cute.Tensor, target: cute.Pointer, sources, i, i0, j):
        """Put words of the target's rows together from their elements, and write them."""
        within, last = cutlass.min(gD.shape[0] - i0, self.tile_i), gD.shape[1] - 1
        place = target + j
        for q in cutlass.range_constexpr(-(-self.tile_i // self.step_i)):
            if i + q * self.step_i < within:
                elements = cute.make_rmem_tensor(cute.make_layout(self.pack), self.element)
                for e in cutlass.range_constexpr(self.pack):
                    source = sources[e] + q * self.step_i * self.item
                    pointer = cute.make_ptr(self.element, source, cute.AddressSpace.smem)
                    elements[e] = cute.make_tensor(pointer, cute.make_layout(1))[0]
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
