"""Copying slices of an operand into shared memory, piece by piece: all threads of a CTA, each piece 4 to 16 bytes.

Pieces go by cp.async where every line of the matrix starts at a multiple of their size. Where lines start anywhere, a
thread loads the elements of a piece of 4 bytes one by one, and stores them together when they have arrived.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint8, cute

from gemmule.kernels.float64.stage import DoubleSlice

from .async_copy import copy_vector_async
from .swizzled_stage import SwizzledSlice

#: Bytes of a piece that is put together from elements.
_WORD = 4


@dataclasses.dataclass(frozen=True)
class SliceCopies:
    """How the slices of an operand are copied.

    Attributes
    ----------
    cut : SwizzledSlice or DoubleSlice
        The slice.
    copy_bytes : int
        Bytes that one copy may move: 16, 8 or 4 by cp.async, else those of an element.
    threads : int
        Threads that share the work.
    parts : int
        Parts that a copy is cut into, so that it can be spread over other work.
    whole : bool
        Whether all of every slice is inside the matrix.
    """

    cut: SwizzledSlice | DoubleSlice
    copy_bytes: int
    threads: int
    parts: int
    whole: bool

    @property
    def by_element(self) -> bool:
        """Whether pieces pass through registers."""
        return self.copy_bytes < _WORD

    @property
    def size(self) -> int:
        """Bytes of a piece."""
        return max(self.copy_bytes, _WORD)

    @property
    def count(self) -> int:
        """Pieces of a thread."""
        return self.cut.bytes // (self.size * self.threads)

    @property
    def lines(self) -> int:
        """Lines from one piece of a thread to the next: neighbouring threads take neighbours of a line."""
        return self.threads * self.size // self.cut.line

    def pieces(self, part: int) -> tuple[int, int]:
        """Return the first piece of a part, and its end."""
        return part * self.count // self.parts, (part + 1) * self.count // self.parts

    @cute.jit
    def place(self):
        """Return the line of this thread's first piece, and the byte in it."""
        tid, _, _ = cute.arch.thread_idx()
        per_line = cutlass.const_expr(self.cut.line // self.size)
        return tid // per_line, tid % per_line * self.size

    @cute.jit
    def origin(self):
        """Return where in the slice this thread's first piece is: row and element of K."""
        line, along = self.place()
        if cutlass.const_expr(self.cut.along_k):
            return line, along // self.cut.itemsize
        depth = cutlass.const_expr(self.cut.depth)
        return (line // depth * self.cut.line + along) // self.cut.itemsize, self.cut.k_of(line % depth)

    def step(self, p: Any) -> tuple[Any, Any]:
        """Return rows and elements of K from a thread's first piece to piece p."""
        line = p * self.lines
        if self.cut.along_k:
            return line, 0
        panel, inside = line // self.cut.depth, line % self.cut.depth
        return panel * self.cut.line // self.cut.itemsize, self.cut.k_of(inside)

    @cute.jit
    def source(self, gX: cute.Tensor, row0):
        """Return where this thread's first piece of the first slice is in device memory."""
        row, k = self.origin()
        return (gX.iterator + cute.crd2idx((row0 + row, k), gX.layout)).toint()

    @cute.jit
    def slice_step(self, gX: cute.Tensor):
        """Return the bytes from a piece of one slice to that of the next."""
        stride = cutlass.const_expr(1) if self.cut.along_k else gX.stride[1]
        return Int64(stride) * (self.cut.depth * self.cut.itemsize)

    @cute.jit
    def target(self):
        """Return where this thread's first piece is in the slice, in bytes."""
        line, along = self.place()
        return line * self.cut.line + (along ^ self.cut.swizzle(line))

    @cute.jit
    def piece_source(self, gX: cute.Tensor, source, p):
        """Return where piece p is in device memory."""
        row, k = self.step(p)
        stride = gX.stride[0] if self.cut.along_k else gX.stride[1]
        lines, along = (row, k) if self.cut.along_k else (k, row)
        return source + Int64(stride) * (lines * self.cut.itemsize) + along * self.cut.itemsize

    @cute.jit
    def piece_target(self, target, p):
        """Return where piece p is in shared memory."""
        line = p * self.lines
        return (target ^ self.cut.swizzle(line)) + line * self.cut.line

    @cute.jit
    def inside(self, gX: cute.Tensor, row0, k0, p):
        """Return how many elements of piece p are inside the matrix, 0 to all."""
        first_row, first_k = self.origin()
        row, k = self.step(p)
        left_m, left_k = gX.shape[0] - row0 - first_row - row, gX.shape[1] - k0 - first_k - k
        along, across = (left_k, left_m) if self.cut.along_k else (left_m, left_k)
        length = cutlass.const_expr(self.size // self.cut.itemsize)
        return cutlass.min(cutlass.max(along, 0), length) if across > 0 else 0

    @cute.jit
    def start(self, gX: cute.Tensor, source, target, row0, k0, part: cutlass.Constexpr[int]):
        """Start the asynchronous copies of one part of the slice at (row0, k0), zeros outside the matrix.

        Parameters
        ----------
        gX : Tensor
            The matrix.
        source, target : Int64 and Int32
            Addresses of this thread's first piece of the slice.
        row0, k0 : Int32
            Where the slice begins.
        part : int
            Which part.
        """
        for p in cutlass.range_constexpr(*self.pieces(part)):
            valid = None
            if cutlass.const_expr(not self.whole):
                valid = self.inside(gX, row0, k0, p) * self.cut.itemsize
            sPiece = _bytes_at(self.piece_target(target, p), cute.AddressSpace.smem, self.size)
            gPiece = _bytes_at(self.piece_source(gX, source, p), cute.AddressSpace.gmem, self.size)
            copy_vector_async(sPiece, gPiece, self.size, valid)

    @cute.jit
    def held(self):
        """Return registers for the elements of one part that pass through them, a word each."""
        count = cutlass.const_expr(-(-self.count // self.parts) if self.by_element else 1)
        return cute.make_rmem_tensor(cute.make_layout((_WORD // self.cut.itemsize, count)), Int32)

    @cute.jit
    def fetch(self, gX: cute.Tensor, held, source, row0, k0, part: cutlass.Constexpr[int]):
        """Load the pieces of one part of the slice, element by element, zeros outside the matrix."""
        first, last = cutlass.const_expr(self.pieces(part))
        for p in cutlass.range(first, last, unroll_full=True):
            valid = self.inside(gX, row0, k0, p)
            address = self.piece_source(gX, source, p)
            for v in cutlass.range_constexpr(cute.size(held, mode=[0])):
                held[v, p - first] = _load_or_zero(address + v * self.cut.itemsize, v, valid, self.cut.itemsize)

    @cute.jit
    def put(self, held: cute.Tensor, target, part: cutlass.Constexpr[int]):
        """Put the elements of one part's pieces together, and store them."""
        first, last = cutlass.const_expr(self.pieces(part))
        for p in cutlass.range(first, last, unroll_full=True):
            word = held[0, p - first]
            for v in cutlass.range_constexpr(1, cute.size(held, mode=[0])):
                word |= held[v, p - first] << (8 * self.cut.itemsize * v)
            place = cute.make_ptr(Int32, self.piece_target(target, p), cute.AddressSpace.smem, assumed_align=_WORD)
            cute.make_tensor(place, cute.make_layout(1))[0] = word


@cute.jit
def _load_or_zero(address, number: cutlass.Constexpr[int], valid, itemsize: cutlass.Constexpr[int]):
    """Return the bits of an element, or 0 where fewer than `number` + 1 are valid, without a branch."""
    return cute.arch.inline_ptx(
        f"{{ .reg .pred inside; setp.gt.s32 inside, {{$r1}}, {number}; mov.b32 {{$w0}}, 0; "
        f"@inside ld.global.u{8 * itemsize} {{$w0}}, [{{$r0}}]; }}",
        write_only_types=[Int32],
        read_only_args=[address, valid],
    )


@cute.jit
def _bytes_at(address, space: cutlass.Constexpr[Any], alignment: cutlass.Constexpr[int]):
    return cute.make_ptr(Uint8, address, space, assumed_align=alignment)
