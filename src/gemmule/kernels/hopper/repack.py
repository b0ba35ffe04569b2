"""Lines of matrices, wherever they begin, copied to where lines begin at multiples of 16 bytes, by whole vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.kernels.hopper.epilogues.unaligned_rows import element_at
from gemmule.kernels.hopper.repack_config import PAIR
from gemmule.kernels.parts.pdl import overlap_predecessor
from gemmule.kernels.parts.stage_copies import load_or_zero
from gemmule.kernels.parts.tensors import major_tensor, strided_tensor
from gemmule.kernels.parts.words import extract, packed, words_at

VECTOR = 16
#: Words of a vector.
_WORDS = VECTOR // 4


def source_lines(name: str, strided: bool) -> Any:
    """Return a fake tensor of lines, of contiguous elements or of any stride."""
    return strided_tensor(name) if strided else major_tensor(name, 0, batch=1)


class PackedLines:
    """D[:, j] = S[:, j] for the matrices of one operand, S with lines anywhere, D with lines at multiples of 16 bytes.

    Parameters
    ----------
    item : int
        Bytes of an element of S.
    threads, vectors : int
        Threads of a CTA, and vectors of 16 bytes of S that each of them copies.
    strided : bool
        Whether the elements of lines of S may have any stride.
    """

    #: Elements of S from one of a vector to the next; whole vectors are read of contiguous ones.
    apart = 1

    def __init__(self, item: int, threads: int, vectors: int, strided: bool = False) -> None:
        self.item, self.strided = item, strided
        self.per_vector = VECTOR // item
        self.threads, self.vectors = threads, vectors
        # Bytes of a part of an element that a word has alone.
        self.unit = min(item, 4)

    @cute.jit
    def count(self, mS: cute.Tensor):
        """Return the vectors that are written of a matrix."""
        return self.per_line(mS) * self.lines(mS)

    def lines(self, mS: cute.Tensor) -> Any:
        """Return the lines that are written of a matrix."""
        return mS.shape[1]

    @cute.jit
    def per_line(self, mS: cute.Tensor):
        """Return the vectors of a line, of gathered ones whole pairs."""
        if cutlass.const_expr(self.strided):
            return cute.ceil_div(mS.shape[0], PAIR * self.per_vector) * PAIR
        return cute.ceil_div(mS.shape[0], self.per_vector)

    @cute.jit
    def pack(self, gS: cute.Tensor, gD: cute.Tensor, cta):
        """Copy this CTA's vectors, whose elements are contiguous or not, after the wait for the predecessor grid."""
        if cutlass.const_expr(self.strided):
            overlap_predecessor()
            self.gather(gS, gD, cta)
        else:
            self.pack_contiguous(gS, gD, cta)

    @cute.jit
    def gather(self, gS: cute.Tensor, gD: cute.Tensor, cta):
        """Copy this CTA's vectors, element by element; neighbouring threads read what is nearer in memory.

        Vectors of a line, or the same elements of neighbouring lines: then pairs of threads write sectors.
        """
        tid, _, _ = cute.arch.thread_idx()
        per_line, count = Uint32(self.per_line(gS)), self.count(gS)
        across = is_nearer(gS.stride[1], gS.stride[0])
        side = Uint32(gS.shape[1] * PAIR) if across else per_line
        loaded = cute.make_rmem_tensor(cute.make_layout((_WORDS, self.vectors)), Uint32)
        vectors = []
        for v in cutlass.range_constexpr(self.vectors):
            index = (cta * self.vectors + v) * self.threads + tid
            high = Uint32(index) // side
            low = Uint32(index) - high * side
            line, in_line = (low // PAIR, high * PAIR + low % PAIR) if across else (high, low)
            vectors.append((index, Int32(in_line * self.per_vector), Int32(line)))
            if index < count:
                self.read_elements(gS, vectors[v][1], vectors[v][2], loaded[None, v])
        for v in cutlass.range_constexpr(self.vectors):
            index, i, vector_line = vectors[v]
            if index < count:
                self.store(loaded[None, v], element_at(gD, i, vector_line))

    @cute.jit
    def pack_contiguous(self, gS: cute.Tensor, gD: cute.Tensor, cta):
        """Copy this CTA's vectors: the loads of all are in flight before the first is used.

        Computing a vector's line costs as much as moving it. So there is one division for the first and one for the
        stride to the next, and what is never negative is unsigned: there, powers of two divide by shifts. All that is
        computed before the wait for the predecessor grid.
        """
        tid, _, _ = cute.arch.thread_idx()
        per_line, count = Uint32(self.per_line(gS)), self.count(gS)
        index = cta * (self.threads * self.vectors) + tid
        line = Uint32(index) // per_line
        in_line = Uint32(index) - line * per_line
        stride_lines = Uint32(self.threads) // per_line
        stride_in_line = Uint32(self.threads) - stride_lines * per_line
        vectors, addresses = [], []
        for v in cutlass.range_constexpr(self.vectors):
            i, vector_line = Int32(in_line * self.per_vector), Int32(line)
            source, target = self.source(gS, i, vector_line), element_at(gD, i, vector_line)
            left = self.left(gS, i, vector_line)
            offset = Uint32(source.toint() & (VECTOR - 1))
            present = index + v * self.threads < count
            vectors.append((source, target, left, offset, present, self.is_inside(i, left, offset)))
            addresses += [source.toint(), target.toint()]
            line, in_line = line + stride_lines, in_line + stride_in_line
            if in_line >= per_line:
                line, in_line = line + 1, in_line - per_line
        overlap_predecessor(tuple(addresses))
        words = cutlass.const_expr(max(2 * _WORDS, VECTOR // self.unit))
        loaded = cute.make_rmem_tensor(cute.make_layout((words, self.vectors)), Uint32)
        for v in cutlass.range_constexpr(self.vectors):
            source, _, left, offset, present, inside = vectors[v]
            if present:
                if inside:
                    self.read(source - Int32(offset // self.item), loaded[None, v])
                else:
                    self.read_units(source, left, loaded[None, v])
        for v in cutlass.range_constexpr(self.vectors):
            _, target, _, offset, present, inside = vectors[v]
            if present:
                found = cute.make_rmem_tensor(cute.make_layout(_WORDS), Uint32)
                if inside:
                    extract(loaded[None, v], offset, found)
                else:
                    self.join(loaded[None, v], found)
                self.store(found, target)

    @cute.jit
    def store(self, words: cute.Tensor, target: cute.Pointer):
        """Write a vector of elements."""
        cute.autovec_copy(words, words_at(target, 4))

    @cute.jit
    def source(self, gS: cute.Tensor, i, line):
        """Return the pointer to what is written to a line from element i on."""
        return element_at(gS, i, line)

    @cute.jit
    def left(self, gS: cute.Tensor, i, line):
        """Return how many elements are written to a line from element i on; what is beyond is zero."""
        del line
        return gS.shape[0] - i

    @cute.jit
    def is_inside(self, i, left, offset):
        """Return whether both vectors around the elements from i on are inside the line."""
        before = Int32(offset // self.item)
        return i >= before and left + before >= 2 * self.per_vector

    @cute.jit
    def read(self, start: cute.Pointer, words: cute.Tensor):
        """Read two vectors."""
        for half in cutlass.range_constexpr(2):
            target = cute.make_tensor(words.iterator + _WORDS * half, cute.make_layout(_WORDS))
            cute.autovec_copy(words_at(start + half * self.per_vector, _WORDS), target)

    @cute.jit
    def read_units(self, start: cute.Pointer, left, units: cute.Tensor):
        """Read the elements of a vector one by one, each part of up to 4 bytes to a word; those beyond are zero."""
        parts = cutlass.const_expr(self.item // self.unit)
        for number in cutlass.range_constexpr(VECTOR // self.unit):
            address = start.toint() + number * self.apart * self.unit
            units[number] = Uint32(load_or_zero(address, number, left * parts, self.unit))

    @cute.jit
    def join(self, units: cute.Tensor, words: cute.Tensor):
        """Join what `read_units` has read."""
        count = cutlass.const_expr(4 // self.unit)
        for w in cutlass.range_constexpr(_WORDS):
            some = cute.make_tensor(units.iterator + w * count, cute.make_layout(count))
            words[w] = some[0] if cutlass.const_expr(count == 1) else packed(some)

    @cute.jit
    def read_elements(self, gS: cute.Tensor, i, line, words: cute.Tensor):
        """Read the elements from i on one by one; those beyond the line are zero."""
        words.fill(Uint32(0))
        elements = cute.recast_tensor(words, gS.element_type)
        for e in cutlass.range_constexpr(self.per_vector):
            if i + e < gS.shape[0]:
                elements[e] = gS[i + e, line]


class LineCopies:
    """The copies of one operand or more in one launch: CTAs for the vectors of one, then those of the next.

    Parameters
    ----------
    lines : sequence of PackedLines
        Copies of each operand, with as many threads and vectors.
    """

    def __init__(self, lines: Sequence[PackedLines]) -> None:
        self.lines = tuple(lines)
        self.threads, self.vectors = lines[0].threads, lines[0].vectors

    @cute.jit
    def __call__(self, pairs, grid: Int32):
        matrices = cutlass.max(pairs[0][0].shape[2], pairs[-1][0].shape[2])
        self.kernel(pairs).launch(grid=(grid, 1, matrices), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, pairs):
        cta, _, batch = cute.arch.block_idx()
        if cutlass.const_expr(len(pairs) == 1):
            self.lines[0].pack(pairs[0][0][None, None, batch], pairs[0][1][None, None, batch], cta)
        else:
            self.copy_from(pairs, 0, Int32(0), (cta, batch))

    @cute.jit
    def copy_from(self, pairs, number: cutlass.Constexpr[int], before, place):
        """Copy this CTA's vectors of operand `number` or later ones; CTAs `before` are earlier ones'."""
        (source, target), (cta, batch) = pairs[number], place
        if cutlass.const_expr(number == len(pairs) - 1):
            # One operand of a batch may be one matrix for all.
            if batch < source.shape[2]:
                self.lines[number].pack(source[None, None, batch], target[None, None, batch], cta - before)
        else:
            following = before + cute.ceil_div(self.lines[number].count(source), self.threads * self.vectors)
            if cta < following:
                if batch < source.shape[2]:
                    self.lines[number].pack(source[None, None, batch], target[None, None, batch], cta - before)
            else:
                self.copy_from(pairs, number + 1, following, place)


@cute.jit
def is_nearer(stride, other):
    """Return whether a stride is shorter than another, whatever their signs."""
    return (stride if stride >= 0 else 0 - stride) < (other if other >= 0 else 0 - other)
