"""Stages of float32 operands in shared memory, for products by FMAs: k-tiles of MN-major panels, however they come.

A panel is 32 rows (of A, or columns of B) by all k of a k-tile; the rows of a k are contiguous. Threads read vectors of
4 rows. A K-major operand whose rows begin anywhere is transposed by its copies, 4 bytes each: a warp copies 2 rows by
16 k, or 4 by 8, which are whole sectors of device memory, and with 4 elements of padding after each k all banks of
shared memory: of every second 8 k, the halves of a vector are swapped.

One whose rows are multiples of 16 bytes is copied as it is, and threads read four k of a row at once. Pieces of 16
bytes are swizzled within 128 bytes, so that eight lanes, whose rows are 4 apart, read from all of these.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import cutlass
from cutlass import Float32, Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.async_copy import copy_masked_async
from gemmule.kernels.parts.stage_copies import StageCopies, StageLayout

from .config import PANEL, SECTOR, VECTOR, VECTOR_BYTES

_ITEM = FLOAT32.itemsize
#: Bytes of all banks of shared memory.
_BANK_BYTES = 128


@dataclass(frozen=True)
class FragmentStage(StageLayout):
    """Layout of a k-tile that threads read fragments of rows from; its extent is a multiple of 32."""

    #: k of a read.
    depth_read: ClassVar[int]

    @property
    def stage_bytes(self) -> int:
        """Bytes of the stage, with its padding."""
        raise NotImplementedError

    def offset(self, row: Any, k: Any) -> Any:
        """Return the offset of the first of a vector of rows in bytes."""
        raise NotImplementedError

    def read(self, fragments: Any, start: Any, stage: Any, step: int, lanes: int) -> None:
        """Read this thread's vectors of rows of one k, or of several at the first of them.

        Parameters
        ----------
        fragments : Tensor
            Registers: (k of a read, elements of a vector, vectors, reads).
        start : Int32
            Address of the first vector in the first stage.
        stage : Int32
            Bytes from the first stage to this one.
        step, lanes : int
            The k, and lanes of a warp along the rows.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SimtStage(FragmentStage):
    """MN-major layout of a k-tile. `line` is a line of the copies: what a warp reads at once."""

    itemsize: int = _ITEM
    line_k: int = SECTOR  #: k of a line of a K-major operand's copies, 8 or 16.
    depth_read: ClassVar[int] = 1

    @property
    def line(self) -> int:
        return (self.line_k if self.k_major else PANEL) * self.itemsize

    @property
    def pitch(self) -> int:
        """Elements from one k to the next."""
        return PANEL + VECTOR_BYTES // self.itemsize if self.k_major else PANEL

    @property
    def stage_bytes(self) -> int:
        return self.extent // PANEL * self.depth * self.pitch * self.itemsize

    def swizzle(self, line: Any) -> Any:
        del line
        return 0

    def offset(self, row: Any, k: Any) -> Any:
        return ((row // PANEL * self.depth + k) * self.pitch + row % PANEL) * self.itemsize

    @cute.jit
    def read(self, fragments, start, stage, step: cutlass.Constexpr[int], lanes: cutlass.Constexpr[int]):
        offset, swizzle, parity = start + stage, cutlass.const_expr(self.row_swizzle(step)), step % 2
        vector = cutlass.const_expr(VECTOR_BYTES // self.itemsize)
        for f in cutlass.range_constexpr(cute.size(fragments, mode=[2])):
            found = _read(offset + self.offset(f * lanes * vector, step), VECTOR_BYTES // _ITEM)
            for v in cutlass.range_constexpr(VECTOR_BYTES // _ITEM):
                fragments[0, v, f, parity] = found[v ^ swizzle]

    def row_swizzle(self, k: Any) -> Any:
        """Return what a k changes (xor) in the number of a row within its vector."""
        return k // SECTOR % 2 * 2 if self.k_major and self.line_k > SECTOR else 0


@dataclass(frozen=True)
class KMajorStage(FragmentStage):
    """K-major layout of a k-tile of 4-byte elements, copied by 16 bytes."""

    depth_read: ClassVar[int] = 4

    @property
    def line(self) -> int:
        return self.depth * self.itemsize

    @property
    def stage_bytes(self) -> int:
        return self.bytes

    def swizzle(self, line: Any) -> Any:
        return line // VECTOR % (_BANK_BYTES // VECTOR_BYTES) * VECTOR_BYTES

    def offset(self, row: Any, k: Any) -> Any:
        return ((row * self.depth + k) * self.itemsize) ^ self.swizzle(row)

    @cute.jit
    def read(self, fragments, start, stage, step: cutlass.Constexpr[int], lanes: cutlass.Constexpr[int]):
        if cutlass.const_expr(step % self.depth_read == 0):
            parity = cutlass.const_expr(step // self.depth_read % 2)
            for f, v in itertools.product(range(cute.size(fragments, mode=[2])), range(VECTOR)):
                row = f * lanes * VECTOR + v
                byte = (row * self.depth + step) * self.itemsize
                within = byte % _BANK_BYTES
                place = ((start + stage) ^ (within ^ self.swizzle(row))) + (byte - within)
                found = _read(place, self.depth_read)
                for k in cutlass.range_constexpr(self.depth_read):
                    fragments[k, v, f, parity] = found[k]


@cute.jit
def _read(address, length: cutlass.Constexpr[int]):
    """Return so many elements of 4 bytes in shared memory, in registers."""
    place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=length * _ITEM)
    found = cute.make_rmem_tensor(cute.make_layout(length), Float32)
    cute.autovec_copy(cute.make_tensor(place, cute.make_layout(length)), found)
    return found


@dataclass(frozen=True)
class MaskedCopies(StageCopies):
    """Copies that a bit of a mask each allows, without branches; those outside the matrix are zeros."""

    stage: FragmentStage

    @cute.jit
    def mask(self, gX: cute.Tensor, row0, k0):
        """Return the mask of a k-tile at (row0, k0): bit p is set where piece p, or all of its rows, are inside."""
        first_row, first_k = self.origin()
        left_m, left_k = gX.shape[0] - row0 - first_row, gX.shape[1] - k0 - first_k
        mask = Int32(0)
        for p in cutlass.range_constexpr(self.count):
            row, k = cutlass.const_expr(self.step(p))
            mask |= 1 << p if row < left_m and k < left_k else 0
        return mask

    @cute.jit
    def issue_masked(self, gX: cute.Tensor, source, target, mask, part: cutlass.Constexpr[int]):
        """Issue the asynchronous copies of one part of a k-tile."""
        for p in cutlass.range_constexpr(*self.pieces(part)):
            copy_masked_async(self.piece_target(target, p), self.piece_source(gX, source, p), self.size, mask, p)


class KMajorCopies(MaskedCopies):
    """Copies of 16 bytes into a `KMajorStage`."""

    @cute.jit
    def target(self):
        row, k = self.origin()
        return self.stage.offset(row, k)


class TransposingCopies(MaskedCopies):
    """Copies of a K-major operand, which they transpose: each is one element."""

    stage: SimtStage

    def step(self, p: Any) -> tuple[Any, Any]:
        line = p * self.lines
        return line % self.stage.extent, line // self.stage.extent * self.stage.line_k

    @cute.jit
    def target(self):
        # Pieces are whole vectors of rows and pairs of 8 k apart: the swizzle is the same.
        row, k = self.origin()
        return self.stage.offset(row ^ self.stage.row_swizzle(k), k)

    @cute.jit
    def piece_target(self, target, p):
        row, k = cutlass.const_expr(self.step(p))
        return target + self.stage.offset(row, k)
