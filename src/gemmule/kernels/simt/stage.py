"""Stages of float32 operands in shared memory, for products by FMAs.

MN-major ones are k-tiles of panels: 32 rows (of A, or columns of B) by all k of a k-tile; the rows of a k are
contiguous. Threads read vectors of 4 rows. A K-major operand whose rows begin anywhere is transposed by its copies,
4 bytes each: a warp copies 4 rows by 8 k, which are whole sectors of device memory, and with 4 elements of padding
after each k all banks of shared memory.

One whose rows are multiples of 16 bytes is copied as it is, and threads read vectors of 4 k: as many as of rows. Lanes
read rows that are 4 apart, so that 16 bytes of padding after each four put them into other banks.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.async_copy import copy_masked_async
from gemmule.kernels.parts.stage_copies import StageCopies, StageLayout

from .config import PANEL, SECTOR, VECTOR, VECTOR_BYTES

_ITEM = FLOAT32.itemsize


@cute.jit
def _read_vector(vector: cute.Tensor, address):
    place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
    cute.autovec_copy(cute.make_tensor(place, cute.make_layout(VECTOR)), vector)


@dataclass(frozen=True)
class SimtStage(StageLayout):
    """MN-major layout of a k-tile, whose extent is a multiple of 32. `line` is what a warp copies at once."""

    itemsize: int = _ITEM

    @property
    def line(self) -> int:
        return (SECTOR if self.k_major else PANEL) * self.itemsize

    @property
    def pitch(self) -> int:
        """Elements from one k to the next."""
        return PANEL + VECTOR_BYTES // self.itemsize if self.k_major else PANEL

    @property
    def stage_bytes(self) -> int:
        """Bytes of the stage, with its padding."""
        return self.extent // PANEL * self.depth * self.pitch * self.itemsize

    def swizzle(self, line: Any) -> Any:
        del line
        return 0

    def offset(self, row: Any, k: Any) -> Any:
        """Return the offset of an element in bytes."""
        return ((row // PANEL * self.depth + k) * self.pitch + row % PANEL) * self.itemsize

    def fragments(self, count: int) -> Any:
        """Return registers for `count` rows of two k: one is read while the other is multiplied."""
        vectors = count * self.itemsize // VECTOR_BYTES
        return cute.make_rmem_tensor(cute.make_layout((VECTOR, vectors, 2)), Float32)

    def of_step(self, rX: Any, step: int) -> Any:
        """Return the fragments of one k, (element, vector)."""
        return rX[None, None, step % 2]

    @cute.jit
    def read(self, rX: cute.Tensor, start, step: cutlass.Constexpr[int], lanes: cutlass.Constexpr[int]):
        """Read this thread's rows of one k; `start` is the address of its first row in the stage."""
        rows = cutlass.const_expr(VECTOR_BYTES // self.itemsize * lanes)
        for f in cutlass.range_constexpr(cute.size(rX, mode=[1])):
            _read_vector(rX[None, f, step % 2], start + self.offset(f * rows, step))


@dataclass(frozen=True)
class KMajorStage(StageLayout):
    """K-major layout of a k-tile of float32: rows, and 16 bytes after each four."""

    itemsize: int = _ITEM

    @property
    def line(self) -> int:
        return self.depth * self.itemsize

    @property
    def stage_bytes(self) -> int:
        """Bytes of the stage, with its padding."""
        return self.offset(self.extent, 0)

    def swizzle(self, line: Any) -> Any:
        del line
        return 0

    def offset(self, row: Any, k: Any) -> Any:
        """Return the offset of an element in bytes."""
        return (row * self.depth + row // VECTOR * VECTOR + k) * self.itemsize

    def fragments(self, count: int) -> Any:
        """Return registers for four k of `count` rows."""
        return cute.make_rmem_tensor(cute.make_layout((VECTOR, VECTOR, count // VECTOR)), Float32)

    def of_step(self, rX: Any, step: int) -> Any:
        """Return the fragments of one k, (element, vector)."""
        return rX[step % VECTOR, None, None]

    def read(self, rX: Any, start: Any, step: int, lanes: int) -> None:
        """Read four k of all of this thread's rows; `start` is the address of its first row in the stage."""
        self.read_rows(rX, start, step, lanes, (0, VECTOR * cute.size(rX, mode=[2])))

    @cute.jit
    def read_rows(self, rX: cute.Tensor, start, step: cutlass.Constexpr[int], lanes: cutlass.Constexpr[int], rows):
        """Read four k of some of this thread's rows, from the first to before the last of `rows`."""
        for i in cutlass.range_constexpr(*rows):
            row = cutlass.const_expr(i // VECTOR * (VECTOR * lanes) + i % VECTOR)
            _read_vector(rX[None, i % VECTOR, i // VECTOR], start + self.offset(row, step))


@dataclass(frozen=True)
class MaskedCopies(StageCopies):
    """Copies that a bit of a mask each allows, without branches; those outside the matrix are zeros."""

    stage: SimtStage | KMajorStage

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


class TransposingCopies(MaskedCopies):
    """Copies of a K-major operand, which they transpose: each is one element."""

    def step(self, p: Any) -> tuple[Any, Any]:
        line = p * self.lines
        return line % self.stage.extent, line // self.stage.extent * SECTOR

    @cute.jit
    def target(self):
        row, k = self.origin()
        return self.stage.offset(row, k)

    @cute.jit
    def piece_target(self, target, p):
        row, k = cutlass.const_expr(self.step(p))
        return target + self.stage.offset(row, k)


class KMajorCopies(MaskedCopies):
    """Copies of 16 bytes of a K-major operand into a `KMajorStage`."""

    @cute.jit
    def target(self):
        row, k = self.origin()
        return self.stage.offset(row, k)

    @cute.jit
    def piece_target(self, target, p):
        row, k = cutlass.const_expr(self.step(p))
        return target + self.stage.offset(row, k)

    @cute.jit
    def k_tile_stride(self, gX: cute.Tensor):
        del gX
        # The compiler would compute addresses anew for each k-tile if it knew how far apart they are.
        return cute.arch.inline_ptx(
            "mov.b64 {$w0}, {$r0};", write_only_types=[Int64], read_only_args=[Int64(self.stage.line)]
        )
