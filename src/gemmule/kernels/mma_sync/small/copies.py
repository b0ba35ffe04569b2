"""Copies of 16-bit elements of lines that begin anywhere, with few instructions for each."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.parts.stage_copies import StageCopies, load_or_zero, opaque
from gemmule.kernels.parts.words import extract, permuted


@dataclass(frozen=True)
class ElementCopies(StageCopies):
    """Copies of a k-tile whose elements wait in registers, two for each word.

    Lines from one piece to the next are a constant number apart, so that one limit each for the first and the second
    element of a word, compared with constants, says which pieces are inside the matrix.
    """

    in_flight: int = 1  #: k-tiles in flight.

    @cute.jit
    def registers(self):
        """Return registers for the k-tiles in flight: elements of a word, words, k-tiles."""
        count = cutlass.const_expr(self.count if self.by_element else 1)
        return cute.make_rmem_tensor(cute.make_layout((2, count, self.in_flight)), Int32)

    @cute.jit
    def load(self, gX: cute.Tensor, loaded, source, row0, k0, part: cutlass.Constexpr[int]):
        """Load the elements of all pieces of a k-tile, zeros outside the matrix."""
        del part
        first_row, first_k = self.origin()
        left_m, left_k = gX.shape[0] - row0 - first_row, gX.shape[1] - k0 - first_k
        along, lines = (left_k, left_m) if self.stage.k_major else (left_m, left_k)
        stride = Int64(gX.stride[0] if self.stage.k_major else gX.stride[1]) * self.stage.itemsize
        # Multiples of it would be computed before the loop, and wait in registers.
        step = opaque(stride * self.lines)
        address = source
        for p in cutlass.range_constexpr(self.count):
            first, line = cutlass.const_expr(self.element_and_line(p))
            if cutlass.const_expr(p > 0):
                address = address + step
            if cutlass.const_expr(line == 0):
                address = source + first * self.stage.itemsize
            for v in cutlass.range_constexpr(2):
                limit = cutlass.select_(along > first + v, lines, 0)
                loaded[v, p] = load_or_zero(address + v * self.stage.itemsize, line, limit, self.stage.itemsize)

    def element_and_line(self, p: int) -> tuple[int, int]:
        """Return the elements along a line, and the lines, from a thread's first piece to piece p."""
        row, k = self.step(p)
        return (k, row) if self.stage.k_major else (row, k)

    @cute.jit
    def store(self, loaded: cute.Tensor, target, part: cutlass.Constexpr[int]):
        """Join the elements of words, and store them."""
        del part
        for p in cutlass.range_constexpr(self.count):
            place = cute.make_ptr(Int32, self.piece_target(target, p), cute.AddressSpace.smem, assumed_align=4)
            cute.make_tensor(place, cute.make_layout(1))[0] = Int32(permuted(loaded[0, p], loaded[1, p], 0x5410))


@dataclass(frozen=True)
class Realigned:
    """Loads of whole rounds of k-tiles by aligned vectors of 16 bytes, out of which a thread shifts its elements.

    A thread's pieces of 16 bytes begin a multiple of 8 lines apart, and so do those of successive k-tiles: as many bytes
    from a multiple of 16 in memory, whatever the leading dimension. What a vector has before and after the piece is
    another part of the matrix: rounds that are not inside K, or touch the matrix's ends, are loaded by elements.
    """

    pieces: StageCopies  #: Copies of pieces of 16 bytes.
    gmem: Any  #: Tensor. The matrix.
    row0: Any  #: Int32. The tile's first row (of B: column).
    k0: Any  #: Int32. The first element of K.
    distance: Any  #: Int64. Bytes from the thread's source of single elements to its first aligned vector.
    shift: Any  #: Uint32. Bytes from there to its first piece.
    offsets: Any  #: Tensor. Bytes from the first piece to each.
    target: Any  #: Int32. Address of the first piece in the first stage.

    @classmethod
    def of(cls, pieces: StageCopies, gmem: Any, place: tuple[Any, Any], source: Any, stage: Any) -> Realigned:
        """Return the loads of a tile from a place on, row and element of K, for a source and a stage of its elements."""
        row0, k0 = place
        address, offsets = _piece_addresses(pieces, gmem, row0, k0)
        start = address & -Int64(_VECTOR)
        shift = Uint32(Int32(address & (_VECTOR - 1)))
        return cls(pieces, gmem, row0, k0, start - source, shift, offsets, stage + pieces.target())

    def is_inside(self, first: Any, count: int) -> Any:
        """Return whether `count` k-tiles from one on, and the vectors around them, are inside the matrix."""
        return _is_inside(self, self.gmem, self.row0, self.k0 + first * self.pieces.stage.depth, count)

    def load(self, loaded: Any, source: Any) -> None:
        """Load the vectors around a k-tile's pieces; `source` is that of its elements."""
        _load_vectors(loaded, source + self.distance, self.offsets, self.pieces.count)

    def store(self, loaded: Any, stage: Any) -> None:
        """Store a k-tile's pieces in the stage that begins `stage` bytes on."""
        _store_pieces(self.pieces, loaded, self.shift, self.target + stage)


#: Bytes of a vector.
_VECTOR = 16


@cute.jit
def _piece_addresses(pieces: cutlass.Constexpr[Any], gX: cute.Tensor, row0, k0):
    """Return the address of a thread's first piece, and the bytes from there to each.

    Of rows beyond the matrix, which results do not need, others are loaded.
    """
    row, k = pieces.origin()
    offsets = cute.make_rmem_tensor(cute.make_layout(pieces.count), Int64)
    row, k = row0 + row, k0 + k
    if cutlass.const_expr(pieces.stage.k_major):
        first = cutlass.min(row, gX.shape[0] - 1)
        for p in cutlass.range_constexpr(pieces.count):
            rows = cutlass.const_expr(pieces.step(p)[0])
            offsets[p] = Int64(gX.stride[0]) * (rows if row + rows < gX.shape[0] else 0) * pieces.stage.itemsize
        row = first
    else:
        for p in cutlass.range_constexpr(pieces.count):
            along, line = cutlass.const_expr(pieces.step(p))
            offsets[p] = (Int64(gX.stride[1]) * line + along) * pieces.stage.itemsize
    return gX.iterator.toint() + (Int64(row) * gX.stride[0] + Int64(k) * gX.stride[1]) * pieces.stage.itemsize, offsets


@cute.jit
def _is_inside(realigned: cutlass.Constexpr[Any], gX: cute.Tensor, row0, k0, count: cutlass.Constexpr[int]):
    stage = cutlass.const_expr(realigned.pieces.stage)
    around, end = cutlass.const_expr(_VECTOR // stage.itemsize), k0 + count * stage.depth
    if cutlass.const_expr(stage.k_major):
        return end + around <= gX.shape[1] and row0 + k0 > 0
    ld = Int64(gX.stride[1])
    last = ld * (end - 1) + row0 + stage.extent + around
    return end <= gX.shape[1] and last <= ld * (gX.shape[1] - 1) + gX.shape[0] and ld * k0 + row0 >= around


@cute.jit
def _load_vectors(loaded: cute.Tensor, source, offsets: cute.Tensor, count: cutlass.Constexpr[int]):
    for p in cutlass.range_constexpr(count):
        for half in cutlass.range_constexpr(2):
            words = cute.arch.inline_ptx(
                "ld.global.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                write_only_types=[Int32] * 4,
                read_only_args=[source + offsets[p] + half * _VECTOR],
            )
            for w in cutlass.range_constexpr(4):
                loaded[8 * p + 4 * half + w] = words[w]


@cute.jit
def _store_pieces(pieces: cutlass.Constexpr[Any], loaded: cute.Tensor, shift, target):
    for p in cutlass.range_constexpr(pieces.count):
        vectors = cute.make_rmem_tensor(cute.make_layout(8), Uint32)
        for w in cutlass.range_constexpr(8):
            vectors[w] = Uint32(loaded[8 * p + w])
        words = cute.make_rmem_tensor(cute.make_layout(4), Uint32)
        extract(vectors, shift, words)
        place = cute.make_ptr(Uint32, pieces.piece_target(target, p), cute.AddressSpace.smem, assumed_align=_VECTOR)
        cute.autovec_copy(words, cute.make_tensor(place, cute.make_layout(4)))
