"""Lines of matrices, wherever they begin, copied to where lines begin at multiples of 16 bytes, by whole vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from gemmule.kernels.hopper.epilogues.unaligned_rows import element_at
from gemmule.kernels.parts.words import shifted, words_at

VECTOR = 16


def shares_of(pairs: Sequence[Any]) -> tuple[tuple[Int32, ...], ...]:
    """Return fake arguments for as many matrices: `OperandCopy.share` of each."""
    return tuple((Int32(0), Int32(0), Int32(1)) for _ in pairs)


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
    def __call__(self, pairs, shares, grid: Int32):
        self.kernel(pairs, shares).launch(grid=(grid, 1, pairs[0][0].shape[2]), block=(self.threads, 1, 1))

    @cute.kernel
    def kernel(self, pairs, shares):
        # The dependent grid may launch now; it waits for the end of this one before it reads.
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        cta, _, batch = cute.arch.block_idx()
        if cutlass.const_expr(len(pairs) == 1):
            self.pack(pairs[0][0][None, None, batch], pairs[0][1][None, None, batch], shares[0], cta)
        else:
            firsts = shares[0][2]
            if cta < firsts:
                self.pack(pairs[0][0][None, None, batch], pairs[0][1][None, None, batch], shares[0], cta)
            else:
                self.pack(pairs[1][0][None, None, batch], pairs[1][1][None, None, batch], shares[1], cta - firsts)

    @cute.jit
    def pack(self, gS: cute.Tensor, gD: cute.Tensor, share, cta):
        """Copy a warp's lines, or its share of one: several vectors are loaded before the first is used.

        Computing where a vector lies costs as much as moving it. So all vectors of a thread are of one line, which is
        as far from a multiple of 16 bytes everywhere, and no division finds it: what shares a line is a power of two.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane, (lanes, warps, _) = tid % 32, share
        warp = cute.arch.make_warp_uniform(cta * (self.threads // 32) + tid // 32)
        line = (warp >> warps << 5 >> lanes) + (lane >> lanes)
        part, parts = warp & ((1 << warps) - 1), 1 << warps
        if line < gS.shape[1]:
            self.pack_line(gS, gD, line, (lane & ((1 << lanes) - 1), 1 << lanes), (part, parts))

    @cute.jit
    def pack_line(self, gS: cute.Tensor, gD: cute.Tensor, line, lanes, parts):
        """Copy a thread's vectors of a line: an index and a count of the lanes, and of the warps, that share it."""
        # Elements from one vector of a thread to the next.
        step = lanes[1] * self.per_vector
        source = element_at(gS, 0, line)
        offset = Uint32(source.toint() & (VECTOR - 1))
        before = Int32(offset // self.item)
        # The two vectors around a line's first or last elements lie in the matrix, but for its first and last line.
        least = Int32(0) if source.toint() - gS.iterator.toint() >= VECTOR else before
        most = gS.shape[0] - self.per_vector
        if element_at(gS, 0, gS.shape[1] - 1).toint() - source.toint() < VECTOR:
            most = most - self.per_vector + before
        start, target = source - before, element_at(gD, 0, line)
        loaded = cute.make_rmem_tensor(cute.make_layout((8, self.vectors)), Uint32)
        words = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
        first = lanes[0] * self.per_vector + parts[0] * self.vectors * step
        for i in cutlass.range(first, gS.shape[0], parts[1] * self.vectors * step, unroll=1):
            for v in cutlass.range_constexpr(self.vectors):
                e = i + v * step
                if e >= least and e <= most:
                    self.read(start + e, loaded[None, v])
            for v in cutlass.range_constexpr(self.vectors):
                e = i + v * step
                if e >= least and e <= most:
                    extract(loaded[None, v], offset, words)
                    self.store(words, gS.element_type, target + e)
            if i < least or i + (self.vectors - 1) * step > most:
                for v in cutlass.range(self.vectors, unroll=1):
                    e = i + v * step
                    if e < gS.shape[0] and (e < least or e > most):
                        self.read_elements(gS, e, line, words)
                        self.store(words, gS.element_type, target + e)

    @cute.jit
    def store(self, words: cute.Tensor, narrow: Any, target: cute.Pointer):
        """Write a vector of elements of that type."""
        del narrow
        cute.autovec_copy(words, words_at(target, 4))

    @cute.jit
    def read(self, start: cute.Pointer, words: cute.Tensor):
        """Read two vectors, one after the other."""
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
def extract(loaded: cute.Tensor, offset, words: cute.Tensor):
    """Extract 4 of 8 words, from byte `offset` (0 to 15) on."""
    steps = [loaded[w] for w in range(8)]
    # By two words, by one, and by bytes within words: no index into registers depends on the offset.
    for distance in cutlass.range_constexpr(2):
        by = cutlass.const_expr(2 - distance)
        shifts = offset // 4 // by % 2 == 1
        steps = [steps[w + by] if shifts else steps[w] for w in range(len(steps) - by)]
    for w in cutlass.range_constexpr(4):
        words[w] = shifted(steps[w], steps[w + 1], offset % 4 * 8)
