"""Copies of an operand's k-tiles into stages of shared memory, by all threads of a CTA, in pieces of 4 to 16 bytes.

Pieces go by cp.async where every line of the matrix starts at a multiple of their size. Where lines start anywhere, a
thread loads the elements of a 4-byte piece one by one, and stores them together after the products of the step.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint8, cute

from gemmule.core.dataclass import dataclass

from .async_copy import copy_masked_async, copy_vector_async

#: Bytes of a piece that is put together from elements, and the last bit of a mask, of which each piece has one.
_WORD, _LAST_BIT = 4, 31


@dataclass(frozen=True)
class StageLayout:
    """Layout of a k-tile in a stage: lines along K (K-major), or panels of lines that belong to one k (MN-major)."""

    #: extent, depth: Rows (of A, or columns of B), and elements of K.
    extent: int
    depth: int
    k_major: bool  #: Whether the operand is K-major: a line is a row.
    itemsize: int  #: Bytes of an element.

    @property
    def bytes(self) -> int:
        """Bytes of the stage."""
        return self.extent * self.depth * self.itemsize

    @property
    def line(self) -> int:
        """Bytes of a line."""
        raise NotImplementedError

    def swizzle(self, line: Any) -> Any:
        """Return what a line, a number or known when the kernel runs, changes (xor) in the offset of a byte in it."""
        raise NotImplementedError

    def k_of(self, line: Any) -> Any:
        """Return the k of a line of a panel."""
        return line


@dataclass(frozen=True)
class StageCopies:
    """Copies of an operand's k-tiles into stages."""

    stage: StageLayout  #: Layout of a stage.
    copy_bytes: int  #: Bytes of a copy: 16, 8 or 4 by cp.async, else those of an element.
    threads: int  #: Threads that share the work.
    parts: int  #: Parts that the copies of a k-tile are spread over.
    whole: bool  #: Whether all of every k-tile is inside the matrix.
    #: Whether the address of a K-major operand's piece is that of the one before, plus a number, for fewer registers.
    #: Else the compiler computes before the loop over K where each piece is, and holds these addresses in two each.
    chained: bool = False
    #: Groups of `threads` threads of a CTA that copy k-tiles of their own, consecutive in K.
    groups: int = 1

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
        return self.stage.bytes // (self.size * self.threads)

    @property
    def lines(self) -> int:
        """Lines from one piece of a thread to the next: consecutive threads copy consecutive pieces of a line."""
        return self.threads * self.size // self.stage.line

    def pieces(self, part: int) -> tuple[int, int]:
        """Return the first piece of a part, and its end."""
        return part * self.count // self.parts, (part + 1) * self.count // self.parts

    @cute.jit
    def place(self):
        """Return the line of this thread's first piece, and the byte in it."""
        tid, _, _ = cute.arch.thread_idx()
        if cutlass.const_expr(self.groups > 1):
            tid = tid % self.threads
        per_line = cutlass.const_expr(self.stage.line // self.size)
        return tid // per_line, tid % per_line * self.size

    @cute.jit
    def origin(self):
        """Return row and element of K of this thread's first piece."""
        line, along = self.place()
        if cutlass.const_expr(self.stage.k_major):
            return line, along // self.stage.itemsize
        depth = cutlass.const_expr(self.stage.depth)
        return (line // depth * self.stage.line + along) // self.stage.itemsize, self.stage.k_of(line % depth)

    def step(self, p: Any) -> tuple[Any, Any]:
        """Return rows and elements of K from a thread's first piece to piece p."""
        line = p * self.lines
        if self.stage.k_major:
            return line, 0
        panel, inside = line // self.stage.depth, line % self.stage.depth
        return panel * self.stage.line // self.stage.itemsize, self.stage.k_of(inside)

    @cute.jit
    def source(self, gX: cute.Tensor, row0):
        """Return the address in device memory of this thread's first piece of the first k-tile."""
        row, k = self.origin()
        if cutlass.const_expr(self.groups > 1):
            tid, _, _ = cute.arch.thread_idx()
            k += tid // self.threads % self.groups * self.stage.depth
        return (gX.iterator + cute.crd2idx((row0 + row, k), gX.layout)).toint()

    @cute.jit
    def k_tile_stride(self, gX: cute.Tensor):
        """Return the bytes between a piece of one k-tile and that of the next."""
        stride = cutlass.const_expr(1) if self.stage.k_major else gX.stride[1]
        nbytes = Int64(stride) * (self.stage.depth * self.stage.itemsize)
        if cutlass.const_expr(self.chained and not self.stage.k_major):
            # Else its factors are held, and multiplied in each k-tile.
            nbytes = opaque(nbytes)
        return nbytes

    @cute.jit
    def target(self):
        """Return the offset of this thread's first piece in a stage, in bytes."""
        line, along = self.place()
        return line * self.stage.line + (along ^ self.stage.swizzle(line))

    @cute.jit
    def piece_source(self, gX: cute.Tensor, source, p):
        """Return the address of piece p in device memory."""
        row, k = self.step(p)
        stride = gX.stride[0] if self.stage.k_major else gX.stride[1]
        lines, along = (row, k) if self.stage.k_major else (k, row)
        return source + Int64(stride) * (lines * self.stage.itemsize) + along * self.stage.itemsize

    @cute.jit
    def piece_address(self, gX: cute.Tensor, source, before, p: cutlass.Constexpr[int], first: cutlass.Constexpr[int]):
        """Return the address of piece p of a part that begins with piece `first`, given that of the one before."""
        if cutlass.const_expr(not (self.chained and self.stage.k_major)):
            before = self.piece_source(gX, source, p)
        elif cutlass.const_expr(p > 0):
            step = Int64(gX.stride[0]) * (self.lines * self.stage.itemsize)
            before = _sum(before, step, p if p == first else 1)
        return before

    @cute.jit
    def piece_target(self, target, p):
        """Return the address of piece p in shared memory."""
        line = p * self.lines
        return (target ^ self.stage.swizzle(line)) + line * self.stage.line

    @cute.jit
    def inside(self, gX: cute.Tensor, row0, k0, p):
        """Return how many elements of piece p are inside the matrix, 0 to all."""
        first_row, first_k = self.origin()
        row, k = self.step(p)
        left_m, left_k = gX.shape[0] - row0 - first_row - row, gX.shape[1] - k0 - first_k - k
        along, across = (left_k, left_m) if self.stage.k_major else (left_m, left_k)
        length = cutlass.const_expr(self.size // self.stage.itemsize)
        return cutlass.min(cutlass.max(along, 0), length) if across > 0 else 0

    @cute.jit
    def issue(self, gX: cute.Tensor, source, target, row0, k0, part: cutlass.Constexpr[int]):
        """Issue the asynchronous copies of one part of the k-tile at (row0, k0), zeros outside the matrix.

        Parameters
        ----------
        gX : Tensor
            The matrix.
        source, target : Int64 and Int32
            Addresses of this thread's first piece of the k-tile.
        row0, k0 : Int32
            First row and element of K of the k-tile.
        part : int
            Index of the part.
        """
        first, last = cutlass.const_expr(self.pieces(part))
        address = source
        for p in cutlass.range_constexpr(first, last):
            valid = None
            if cutlass.const_expr(not self.whole):
                valid = self.inside(gX, row0, k0, p) * self.stage.itemsize
            sPiece = _bytes_at(self.piece_target(target, p), cute.AddressSpace.smem, self.size)
            address = self.piece_address(gX, source, address, p, first)
            gPiece = _bytes_at(address, cute.AddressSpace.gmem, self.size)
            copy_vector_async(sPiece, gPiece, self.size, valid)

    @cute.jit
    def registers(self):
        """Return registers for the elements of one part that are copied one by one, a word each."""
        count = cutlass.const_expr(-(-self.count // self.parts) if self.by_element else 1)
        return cute.make_rmem_tensor(cute.make_layout((_WORD // self.stage.itemsize, count)), Int32)

    @cute.jit
    def load(self, gX: cute.Tensor, loaded, source, row0, k0, part: cutlass.Constexpr[int]):
        """Load the pieces of one part of the k-tile, element by element, zeros outside the matrix."""
        first, last = cutlass.const_expr(self.pieces(part))
        for p in cutlass.range(first, last, unroll_full=True):
            valid = self.inside(gX, row0, k0, p)
            address = self.piece_source(gX, source, p)
            for v in cutlass.range_constexpr(cute.size(loaded, mode=[0])):
                loaded[v, p - first] = load_or_zero(address + v * self.stage.itemsize, v, valid, self.stage.itemsize)

    @cute.jit
    def store(self, loaded: cute.Tensor, target, part: cutlass.Constexpr[int]):
        """Join the elements of one part's pieces, and store them."""
        first, last = cutlass.const_expr(self.pieces(part))
        for p in cutlass.range(first, last, unroll_full=True):
            word = loaded[0, p - first]
            for v in cutlass.range_constexpr(1, cute.size(loaded, mode=[0])):
                word |= loaded[v, p - first] << (8 * self.stage.itemsize * v)
            place = cute.make_ptr(Int32, self.piece_target(target, p), cute.AddressSpace.smem, assumed_align=_WORD)
            cute.make_tensor(place, cute.make_layout(1))[0] = word


@dataclass(frozen=True)
class MaskedCopies(StageCopies):
    """Copies that a bit of a mask each allows, without branches; those outside the matrix are zeros."""

    first_bit: int = 0  #: Bit of piece 0; those before it may be another operand's.

    @cute.jit
    def mask(self, gX: cute.Tensor, row0, k0):
        """Return the mask of a k-tile at (row0, k0): a piece's bit is set where it, or all of its rows, are inside."""
        first_row, first_k = self.origin()
        left_m, left_k = gX.shape[0] - row0 - first_row, gX.shape[1] - k0 - first_k
        mask = Int32(0)
        for p in cutlass.range_constexpr(self.count):
            row, k = cutlass.const_expr(self.step(p))
            number = cutlass.const_expr(self.first_bit + p)
            # The last bit of an Int32 is its sign.
            bit = cutlass.const_expr((1 << number) - (1 << 32 if number == _LAST_BIT else 0))
            mask |= bit if row < left_m and k < left_k else 0
        return mask

    def bit(self, p: int) -> int:
        """Return the bit of piece p. In whole tiles all are equal."""
        return 0 if self.whole else self.first_bit + p

    @cute.jit
    def issue_masked(self, gX: cute.Tensor, source, target, mask, part: cutlass.Constexpr[int]):
        """Issue the asynchronous copies of one part of a k-tile."""
        first, last = cutlass.const_expr(self.pieces(part))
        address = source
        for p in cutlass.range_constexpr(first, last):
            place = self.piece_target(target, p)
            address = self.piece_address(gX, source, address, p, first)
            copy_masked_async(place, address, self.size, mask, self.bit(p))


@dataclass(frozen=True)
class OperandCopies:
    """Copies of one operand of a tile, from its first k-tile on."""

    copies: StageCopies  #: The copies.
    gmem: Any  #: Tensor. The matrix.
    #: row0, k0: Int32. The tile's first row (of B: column), and the first element of K.
    row0: Any
    k0: Any
    target: Any  #: Int32. Address of this thread's first piece in the first stage.
    stride: Any  #: Int64. Bytes from one k-tile to the next in device memory.
    registers: Any = None  #: Tensor or None. Elements that are copied one by one.
    offset: int = 0  #: Bytes from the operand that `target` is of to this one, in a stage.

    def issue(self, source: Any, stage: Any, k_tile: Any, part: int) -> None:
        """Issue one part of the copies of a k-tile from `source` into the stage that begins `stage` bytes on."""
        k0 = self.k0 + k_tile * self.copies.stage.depth
        if self.copies.by_element:
            self.copies.load(self.gmem, self.registers, source, self.row0, k0, part)
        else:
            self.copies.issue(self.gmem, source, self.target + stage + self.offset, self.row0, k0, part)

    def store(self, stage: Any, part: int) -> None:
        """Store what a part loaded into registers."""
        if self.copies.by_element:
            self.copies.store(self.registers, self.target + stage + self.offset, part)


@dataclass(frozen=True)
class MaskedOperand(OperandCopies):
    """Copies of an operand by masks: of k-tiles that are inside the matrix in K, and of the one that is not."""

    inside: Any = None  #: Int32. Which copies are inside the rows.
    last: Any = None  #: Int32. Which of them are inside K in the k-tile that is not.
    full: Any = None  #: Int32. How many k-tiles are inside K.

    @classmethod
    def of(cls, copies: MaskedCopies, gmem: Any, row0: Any, first: Any, target: Any, stride: Any) -> MaskedOperand:
        """Return the copies from the `first` k-tile on; None is 0."""
        full = gmem.shape[1] // copies.stage.depth
        # In registers, not computed again for each k-tile.
        inside = opaque(copies.mask(gmem, row0, 0 - copies.stage.depth))
        last = opaque(copies.mask(gmem, row0, full * copies.stage.depth))
        full = full if first is None else full - first
        return cls(copies, gmem, row0, Int32(0), target, stride, inside=inside, last=last, full=full)

    def issue(self, source: Any, stage: Any, k_tile: Any, part: int) -> None:
        _issue_masked(self, source, stage, k_tile, part)


@cute.jit
def _issue_masked(operand, source, stage, k_tile, part: cutlass.Constexpr[int]):
    mask = operand.inside
    mask = mask if k_tile < operand.full else operand.last
    operand.copies.issue_masked(operand.gmem, source, operand.target + stage, mask, part)


def opaque(value: Any) -> Any:
    """Return an Int32 or Int64 of which the compiler does not know how it was computed."""
    return cute.arch.inline_ptx(
        f"mov.b{value.width} {{$w0}}, {{$r0}};", write_only_types=[type(value)], read_only_args=[value]
    )


@cute.jit
def _sum(address, step, number: cutlass.Constexpr[int]):
    """Return an Int64 plus so many times another one, computed here: the compiler cannot move it before a loop."""
    return cute.arch.inline_ptx(
        f"mad.lo.s64 {{$w0}}, {{$r1}}, {number}, {{$r0}};" if number > 1 else "add.s64 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int64],
        read_only_args=[address, step],
    )


@cute.jit
def load_or_zero(address, number: cutlass.Constexpr[int], valid, itemsize: cutlass.Constexpr[int]):
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
