"""Permutations that keep the last axis: rows are copied whole.

Idea
    Where source and target are contiguous along the same axis nothing is transposed within a row: rows change their
    places. A thread writes vectors of 16 bytes, wherever a row begins. It reads the units that they are made of, as
    large as all rows are aligned to; for units of 1 and 2 bytes it reads the words that hold them, and shifts. Rows
    that follow one another in the target are one run: a vector that has the end of a row and the beginning of the next
    is made of words of both.
Data movement
    Every element is read once and written once, vectors at the ends of runs in words and elements.
Limits
    Device memory.
Sources
    "CUDA C++ Programming Guide", device memory accesses: sectors of 32 bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, Uint64, cute

from gemmule.core.row_major import VECTOR_BYTES
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.words import clamped_shift, shifted
from gemmule.kernels.transpose.frame import Transpose, device_memory
from gemmule.kernels.transpose.rows.runs import SHARE_BITS, RowsConfig
from gemmule.kernels.transpose.tile_config import WORD, TileConfig


class _Place(NamedTuple):
    """A thread's first vector, and what is from it to the next ones."""

    place: Any  #: Bytes from the vector that the target's run begins in.
    begins: tuple[Any, Any]  #: Addresses of the run in source and target.
    steps: tuple[Any, Any]  #: Bytes from one to the next.
    rows: tuple[Any, Any, Any]  #: Rows of a run, bytes of each, and from one to the next in the source.
    divisor: Any  #: As of Runs.


class _Vector(NamedTuple):
    """A vector of the target, whose elements are of one row of a run, or of two."""

    offset: Any  #: Bytes from the run's first to the vector.
    target: Any  #: Address of the run in the target.
    rest: Any  #: Bytes from the vector to the second row; as many as a vector has or more where it has none of that.
    first: Any  #: Address in the source of the vector's bytes, as far as they are of the first row.
    second: Any  #: The same of the second row.


class RowsTranspose(Transpose):
    """D[i, j, l] = S[i, j, l] for S and D contiguous along j.

    Parameters
    ----------
    config : RowsConfig
        The vectors.
    types : dict
        ``element``, the opaque type of a unit; ``runs``: ``merged`` or ``single`` rows.
    """

    contiguous = (1, 1)

    def __init__(self, config: RowsConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.passes, self.vector, self.merged = config.passes, config.vector, types["runs"] == "merged"
        # Bytes of a word; words of a vector, and those that hold its bytes wherever they begin.
        self.size = max(self.item, WORD)
        self.words = self.vector // self.size
        self.held = self.words + 1

    @cute.jit
    def __call__(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        self.kernel(mS, mD, numbers).launch(grid=(1, 1, 1), block=(self.threads, 1, 1))

    @classmethod
    def buildable(cls, config: TileConfig, types: dict[str, str]) -> Buildable:
        found = super().buildable(config, types)
        return Buildable(found.function, (*found.arguments, (Int32(1),) * 9))

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mD: cute.Tensor, numbers: tuple[Int32, ...]):
        """Copy vectors of runs.

        `numbers` are the threads of a run, and 2 ** SHARE_BITS divided by them; the runs that a CTA copies at once; the
        matrices of a batch whose CTAs follow one another; the tiles of a matrix, and those along one axis that do; a
        divisor of places in a run, and the vectors from the source's first element to the ends of its memory, as Runs
        says.
        """
        lanes, share, abreast, together, tiles, neighbours, divisor, before, after = numbers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        # Nothing is divided in vain: a division takes as long as a load from the L2 cache.
        tile, batch, l0, l1, l2 = Int32(cta), Int32(0), Int32(0), Int32(0), Int32(0)
        if together > 1:
            tile = cta // together
            batch = cta - tile * together
        if tile >= tiles:
            group = tile // tiles
            tile, batch = tile - group * tiles, batch + group * together
        # Merged rows of one number are far apart in the source, and those of the next run are next to them.
        outer = tile // neighbours
        tile_i, tile_j = outer, tile - outer * neighbours
        if cutlass.const_expr(self.merged):
            tile_i, tile_j = tile_j, tile_i
        l0 = batch
        if batch >= mS.shape[2]:
            outer = batch // mS.shape[2]
            l0, l1 = batch - outer * mS.shape[2], outer
            if cutlass.const_expr(not self.merged):
                l1, l2 = outer % mS.shape[3], outer // mS.shape[3]
        gS, gD = mS[None, None, l0, l1, l2], mD[None, None, l0, l1, l2]
        row = (tid * share) >> SHARE_BITS
        place = (tile_j * lanes + (tid - row * lanes)) * self.vector
        # Threads beyond the last run have none.
        i = tile_i * (abreast * self.passes) + row if row < abreast else gS.shape[0]
        length = mS.shape[1] * self.item
        rows = mS.shape[4] if cutlass.const_expr(self.merged) else Int32(1)
        apart = Int64(mS.stride[4]) * self.item if cutlass.const_expr(self.merged) else Int64(0)
        lines = Int64(gS.stride[0]) * self.item, Int64(gD.stride[0]) * self.item
        begins = gS.iterator.toint() + lines[0] * i, gD.iterator.toint() + lines[1] * i
        steps = lines[0] * abreast, lines[1] * abreast
        begin = mS.iterator.toint()
        memory = begin + Int64(before) * VECTOR_BYTES, begin + Int64(after) * VECTOR_BYTES
        run = length * rows
        thread = _Place(place, begins, steps, (rows, length, apart), divisor)
        overlap_predecessor()
        read = cute.make_rmem_tensor(cute.make_layout((self.held, self.passes)), self.word)
        others = cute.make_rmem_tensor(cute.make_layout((self.held, self.passes)), self.word)
        is_outside = Boolean(False)
        for p in cutlass.range_constexpr(self.passes):
            vector = self.vector_of(thread, p)
            if i + abreast * p < gS.shape[0] and vector.offset < run:
                if cutlass.const_expr(self.pack == 1):
                    self.read_units(vector, run, read[None, p])
                elif self.is_inside(vector, memory):
                    self.read_words(vector.first, read[None, p])
                    if vector.rest < self.vector:
                        self.read_words(vector.second, others[None, p])
                else:
                    is_outside = Boolean(True)
        for p in cutlass.range_constexpr(self.passes):
            vector = self.vector_of(thread, p)
            if i + abreast * p < gS.shape[0] and vector.offset < run:
                if cutlass.const_expr(self.pack == 1):
                    self.write(read[None, p], vector, run)
                elif self.is_inside(vector, memory):
                    self.shift(vector.first, read[None, p])
                    if vector.rest < self.vector:
                        self.shift(vector.second, others[None, p])
                        self.merge(read[None, p], others[None, p], vector.rest)
                    self.write(read[None, p], vector, run)
        # The first and the last vector of all memory.
        if is_outside:
            for p in cutlass.range(self.passes, unroll=1):
                vector = self.vector_of(thread, p)
                is_own = not self.is_inside(vector, memory)
                if i + abreast * p < gS.shape[0] and vector.offset < run and is_own:
                    self.copy_elements(vector, run)

    def vector_of(self, thread: _Place, p) -> _Vector:
        """Return a thread's vector of a number."""
        source, target = (begin + step * p for begin, step in zip(thread.begins, thread.steps, strict=True))
        offset = thread.place - Int32(target & (self.vector - 1))
        if not self.merged:
            return _Vector(offset, target, Int32(self.vector), source + offset, source)
        rows, length, apart = thread.rows
        number = Int32((Uint64(cutlass.max(offset, 0)) * Uint64(thread.divisor)) >> 32)
        within, source = offset - number * length, source + apart * number
        # The last row has none behind it.
        rest = length - within + cutlass.max(number + 2 - rows, 0) * self.vector
        return _Vector(offset, target, rest, source + within, source + apart - (length - within))

    @cute.jit
    def is_inside(self, vector, memory):
        """Return whether the words that hold a vector's bytes are within memory."""
        begin, end = memory
        size = cutlass.const_expr(self.held * WORD)
        first = vector.first & -WORD
        found = first >= begin and first + size <= end
        if cutlass.const_expr(self.merged):
            second = vector.second & -WORD
            found = found and (vector.rest >= self.vector or (second >= begin and second + size <= end))
        return found

    @cute.jit
    def read_units(self, vector, run, read: cute.Tensor):
        """Read those units of a vector that are in a run."""
        for w in cutlass.range_constexpr(self.words):
            at = cutlass.const_expr(w * self.size)
            place = vector.first + at
            if cutlass.const_expr(self.merged):
                place = vector.second + at if vector.rest <= at else place
            if vector.offset + at >= 0 and vector.offset + at < run:
                read[w] = device_memory(self.word, place)[0]

    @cute.jit
    def read_words(self, place, read: cute.Tensor):
        """Read the words that hold as many bytes as a vector's from a place on."""
        for w in cutlass.range_constexpr(self.held):
            read[w] = device_memory(Uint32, (place & -WORD) + w * WORD)[0]

    @cute.jit
    def shift(self, place, read: cute.Tensor):
        """Make words that begin at a place of those that hold them."""
        bits = Uint32(Int32(place) & (WORD - 1)) * 8
        for w in cutlass.range_constexpr(self.words):
            read[w] = shifted(read[w], read[w + 1], bits)

    @cute.jit
    def merge(self, read: cute.Tensor, others: cute.Tensor, rest):
        """Replace a vector's bytes from one on by those of another."""
        for w in cutlass.range_constexpr(self.words):
            bits = cutlass.max(rest - w * WORD, 0) * 8
            mask = clamped_shift(Uint32(0xFFFFFFFF), Uint32(bits))
            read[w] = (read[w] & ~mask) | (others[w] & mask)

    @cute.jit
    def write(self, read: cute.Tensor, vector, run):
        """Write those elements of a vector that are in a run."""
        if vector.offset >= 0 and vector.offset + self.vector <= run:
            target = device_memory(self.word, vector.target + vector.offset, self.words)
            for w in cutlass.range_constexpr(self.words):
                target[w] = read[w]
        else:
            for w in cutlass.range_constexpr(self.words):
                at = vector.offset + w * self.size
                if at >= 0 and at + self.size <= run:
                    self.put(self.word, vector.target + at, read[w])
                elif cutlass.const_expr(self.pack > 1):
                    for e in cutlass.range_constexpr(self.pack):
                        if at + e * self.item >= 0 and at + (e + 1) * self.item <= run:
                            element = self.element(read[w] >> (8 * e * self.item))
                            self.put(self.element, vector.target + at + e * self.item, element)

    @cute.jit
    def copy_elements(self, vector, run):
        """Copy those elements of a vector that are in a run."""
        count = cutlass.const_expr(self.vector // self.item)
        elements = cute.make_rmem_tensor(cute.make_layout(count), self.element)
        for e in cutlass.range_constexpr(count):
            at = cutlass.const_expr(e * self.item)
            place = vector.first + at
            if cutlass.const_expr(self.merged):
                place = vector.second + at if vector.rest <= at else place
            if vector.offset + at >= 0 and vector.offset + at < run:
                elements[e] = device_memory(self.element, place)[0]
        for e in cutlass.range_constexpr(count):
            at = cutlass.const_expr(e * self.item)
            if vector.offset + at >= 0 and vector.offset + at < run:
                self.put(self.element, vector.target + vector.offset + at, elements[e])


buildable = RowsTranspose.buildable
