"""Vectors of the target, made of the units or words of one row of the source or of two."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Uint32, Uint64, cute

from gemmule.kernels.parts.words import clamped_shift, shifted
from gemmule.kernels.transpose.frame import Transpose, device_memory
from gemmule.kernels.transpose.rows.runs import RowsConfig
from gemmule.kernels.transpose.tile_config import WORD


class Place(NamedTuple):
    """A thread's first vector, and what is from it to the next ones."""

    place: Any  #: Bytes from the vector that the target's run begins in.
    begins: tuple[Any, Any]  #: Addresses of the run in source and target.
    steps: tuple[Any, Any]  #: Bytes from one to the next.
    rows: tuple[Any, Any, Any]  #: Rows of a run, bytes of each, and from one to the next in the source.
    divisor: Any  #: As of Runs.


class Vector(NamedTuple):
    """A vector of the target, whose elements are of one row of a run, or of two."""

    offset: Any  #: Bytes from the run's first to the vector.
    target: Any  #: Address of the run in the target.
    rest: Any  #: Bytes from the vector to the second row; as many as a vector has or more where it has none of that.
    first: Any  #: Address in the source of the vector's bytes, as far as they are of the first row.
    second: Any  #: The same of the second row.


class Vectors(Transpose):
    """Base of the kernel that moves vectors; parameters as of RowsTranspose."""

    contiguous = (1, 1)

    def __init__(self, config: RowsConfig, types: dict[str, str]) -> None:
        super().__init__(config, types)
        self.passes, self.vector, self.merged = config.passes, config.vector, types["runs"] == "merged"
        # Bytes of a word; words of a vector, and those that hold its bytes wherever they begin.
        self.size = max(self.item, WORD)
        self.words = self.vector // self.size
        self.held = self.words + 1

    def vector_of(self, thread: Place, p) -> Vector:
        """Return a thread's vector of a number."""
        source, target = (begin + step * p for begin, step in zip(thread.begins, thread.steps, strict=True))
        offset = thread.place - Int32(target & (self.vector - 1))
        if not self.merged:
            return Vector(offset, target, Int32(self.vector), source + offset, source)
        rows, length, stride = thread.rows
        number = Int32((Uint64(cutlass.max(offset, 0)) * Uint64(thread.divisor)) >> 32)
        within, source = offset - number * length, source + stride * number
        # The last row has none behind it.
        rest = length - within + cutlass.max(number + 2 - rows, 0) * self.vector
        return Vector(offset, target, rest, source + within, source + stride - (length - within))

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
