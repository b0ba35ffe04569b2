"""Lines of matrices, wherever they begin, copied to where lines begin at multiples of 16 bytes, by whole vectors."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.kernels.parts.words import shifted, words_at

VECTOR = 16


class PackedLines:
    """D[:, j, l] = S[:, j, l] for one or two pairs, S with lines anywhere, D with lines at multiples of 16 bytes.

    Parameters
    ----------
    item : int
        Bytes of an element of S.
    threads, vectors : int
        Threads of a CTA, and vectors of 16 bytes of S that each of them copies.
    """

    def __init__(self, item: int, threads: int, vectors: int) -> None:
        self.item = item
        self.per_vector = VECTOR // item
        self.threads, self.vectors = threads, vectors

    @cute.jit
    def __call__(self, pairs, grid: Int32):
        self.kernel(pairs).launch(grid=(grid, 1, pairs[0][0].shape[2]), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, pairs):
        # What follows may take its place beside this; it waits for the end before it reads.
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        cta, _, batch = cute.arch.block_idx()
        if cutlass.const_expr(len(pairs) == 1):
            self.pack(pairs[0][0][None, None, batch], pairs[0][1][None, None, batch], cta)
        else:
            firsts = cute.ceil_div(self.count(pairs[0][0]), self.threads * self.vectors)
            if cta < firsts:
                self.pack(pairs[0][0][None, None, batch], pairs[0][1][None, None, batch], cta)
            else:
                self.pack(pairs[1][0][None, None, batch], pairs[1][1][None, None, batch], cta - firsts)

    @cute.jit
    def count(self, mS: cute.Tensor):
        """Return the vectors that are written of a matrix."""
        return self.per_line(mS) * mS.shape[1]

    @cute.jit
    def per_line(self, mS: cute.Tensor):
        """Return the vectors of a line."""
        return cute.ceil_div(mS.shape[0], self.per_vector)

    @cute.jit
    def pack(self, gS: cute.Tensor, gD: cute.Tensor, cta):
        """Copy this CTA's vectors: all are on their way before the first is used.

        To find a vector is as much work as to move it. So there is one division for the first and one for the step to
        the next, and what is never negative is unsigned: there, powers of two divide by shifts.
        """
        tid, _, _ = cute.arch.thread_idx()
        per_line, count = Uint32(self.per_line(gS)), self.count(gS)
        number = cta * (self.threads * self.vectors) + tid
        line = Uint32(number) // per_line
        place = Uint32(number) - line * per_line
        lines = Uint32(self.threads) // per_line
        places = Uint32(self.threads) - lines * per_line
        found = cute.make_rmem_tensor(cute.make_layout((8, self.vectors)), Uint32)
        vectors = []
        for v in cutlass.range_constexpr(self.vectors):
            i = Int32(place * self.per_vector)
            early = self.early(gS, i, Int32(line))
            present = number + v * self.threads < count
            inside = self.is_inside(gS, i, early)
            vectors.append((i, Int32(line), early, present, inside))
            if present and inside:
                self.read(gS, i, Int32(line), early, found[None, v])
            line, place = line + lines, place + places
            if place >= per_line:
                line, place = line + 1, place - per_line
        for v in cutlass.range_constexpr(self.vectors):
            i, at, early, present, inside = vectors[v]
            if present:
                words = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
                if inside:
                    moved(found[None, v], early, words)
                else:
                    self.read_elements(gS, i, at, words)
                self.put(words, gS.element_type, element_at(gD, i, at))

    @cute.jit
    def put(self, words: cute.Tensor, narrow: Any, place: cute.Pointer):
        """Write a vector of elements of that type."""
        del narrow
        cute.autovec_copy(words, words_at(place, 4))

    @cute.jit
    def early(self, gS: cute.Tensor, i, line):
        """Return how many bytes before an element a multiple of 16 lies."""
        return Uint32(element_at(gS, i, line).toint() & (VECTOR - 1))

    @cute.jit
    def is_inside(self, gS: cute.Tensor, i, early):
        """Return whether both vectors around the elements from i on lie in the line."""
        before = Int32(early // self.item)
        return i >= before and i - before + 2 * self.per_vector <= gS.shape[0]

    @cute.jit
    def read(self, gS: cute.Tensor, i, line, early, words: cute.Tensor):
        """Read the two vectors around the elements from i on."""
        start = element_at(gS, i, line) - Int32(early // self.item)
        for half in cutlass.range_constexpr(2):
            target = cute.make_tensor(words.iterator + 4 * half, cute.make_layout(4))
            cute.autovec_copy(words_at(start + half * self.per_vector, 4), target)

    @cute.jit
    def read_elements(self, gS: cute.Tensor, i, line, words: cute.Tensor):
        """Read the elements from i on one by one; what lies beyond the line is zero."""
        words.fill(Uint32(0))
        elements = cute.recast_tensor(words, gS.element_type)
        for e in cutlass.range_constexpr(self.per_vector):
            if i + e < gS.shape[0]:
                elements[e] = gS[i + e, line]


@cute.jit
def element_at(gX: cute.Tensor, i, line):
    """Return where an element is."""
    return gX.iterator + cute.crd2idx((i, line), gX.layout)


@cute.jit
def moved(found: cute.Tensor, early, words: cute.Tensor):
    """Take 4 of 8 words, from byte `early` (0 to 15) on."""
    steps = [found[w] for w in range(8)]
    # By two words, by one, and by bytes within words: no index into registers depends on where it begins.
    for distance in cutlass.range_constexpr(2):
        by = cutlass.const_expr(2 - distance)
        shifts = early // 4 // by % 2 == 1
        steps = [steps[w + by] if shifts else steps[w] for w in range(len(steps) - by)]
    for w in cutlass.range_constexpr(4):
        words[w] = shifted(steps[w], steps[w + 1], early % 4 * 8)
