"""Stages of float32 operands in shared memory, for products by FMAs: k-tiles of MN-major panels, however they come.

A panel is 32 rows (of A, or columns of B) by all k of a k-tile; the rows of a k are contiguous. Threads read vectors of
4 rows. A K-major operand is transposed by its copies, 4 bytes each: a warp copies 4 rows by 8 k, which are whole
sectors of device memory, and with 4 elements of padding after each k all banks of shared memory. Or it passes through
registers: a warp loads vectors of 4 k, whole lines of the first-level cache where a k-tile has so many, and stores
their elements one by one; padding follows each 4 k, as many elements as the warp loads rows.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int64, cute

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.stage_copies import MaskedCopies, StageLayout, opaque

from .config import PANEL, SECTOR, VECTOR, VECTOR_BYTES

_ITEM = FLOAT32.itemsize
#: Bytes of a line of the first-level cache, and lanes of a warp.
_LINE, _LANES = 128, 32


@cute.jit
def _read_vector(vector: cute.Tensor, address):
    place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
    cute.autovec_copy(cute.make_tensor(place, cute.make_layout(VECTOR)), vector)


@dataclass(frozen=True)
class SimtStage(StageLayout):
    """Layout of a k-tile; its extent is a multiple of 32. `line` is a line of the copies: what a warp reads at once."""

    itemsize: int = _ITEM
    #: Whether the operand, a K-major one, is loaded by vectors.
    by_vectors: bool = False

    @property
    def line(self) -> int:
        if not self.k_major:
            return PANEL * self.itemsize
        return min(self.depth * self.itemsize, _LINE) if self.by_vectors else SECTOR * self.itemsize

    @property
    def vector(self) -> int:
        """Elements of a vector."""
        return VECTOR_BYTES // self.itemsize

    @property
    def pitch(self) -> int:
        """Elements from one k to the next, but for what follows a vector's."""
        return PANEL + self.vector * (self.k_major and not self.by_vectors)

    @property
    def gap(self) -> int:
        """Elements of padding after the k of a vector."""
        return _LANES * VECTOR_BYTES // self.line if self.by_vectors else 0

    @property
    def panel(self) -> int:
        """Elements of a panel, with its padding."""
        return self.depth * self.pitch + self.depth // self.vector * self.gap

    @property
    def stage_bytes(self) -> int:
        """Bytes of the stage, with its padding."""
        return self.extent // PANEL * self.panel * self.itemsize

    def swizzle(self, line: Any) -> Any:
        del line
        return 0

    def offset(self, row: Any, k: Any) -> Any:
        """Return the offset of an element in bytes."""
        along = k * self.pitch + k // self.vector * self.gap
        return (row // PANEL * self.panel + along + row % PANEL) * self.itemsize

    @cute.jit
    def read_part(self, rX: cute.Tensor, start, part: cutlass.Constexpr[Any], four: cutlass.Constexpr[int], lanes):
        """Read a part of this thread's rows, of some four k; `start` is the address of its first row in the stage."""
        for k in cutlass.range_constexpr(part.ks):
            offset = cutlass.const_expr(self.offset(part.row * lanes, four * VECTOR + part.k + k))
            _read_vector(rX[None, k], start + offset)

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
        for f in cutlass.range_constexpr(cute.size(rX, mode=[1])):
            _read_vector(rX[None, f, step % 2], start + self.offset(f * lanes * self.vector, step))


@dataclass(frozen=True)
class KMajorStage(StageLayout):
    """Layout of a k-tile of a K-major float32 operand: vectors of 4 k, those of 4 k of all rows one after another.

    Rows are in the order in which a warp's lanes read them: so many `lanes` read consecutive vectors, of rows that are
    4 apart. After the rows of 4 k is padding, as many vectors as a warp copies rows at once.
    """

    lanes: int = 1  #: Lanes of a warp that read different rows.

    @property
    def line(self) -> int:
        return min(self.depth * self.itemsize, _LINE)

    @property
    def pitch(self) -> int:
        """Elements from four k to the next four."""
        return VECTOR * self.extent + _LANES * VECTOR_BYTES // self.line

    @property
    def stage_bytes(self) -> int:
        """Bytes of the stage, with its padding."""
        return self.depth // VECTOR * self.pitch * self.itemsize

    def swizzle(self, line: Any) -> Any:
        del line
        return 0

    def place(self, row: Any) -> Any:
        """Return which vector of four k is that of a row."""
        several, inside = VECTOR * self.lanes, row % (VECTOR * self.lanes)
        return row // several * several + inside % VECTOR * self.lanes + inside // VECTOR

    def row(self, line: Any) -> Any:
        """Return the row that a line of the copies is of: a warp copies rows that are 4 apart, for other banks."""
        return line // 16 * 16 + line % 4 * 4 + line // 4 % 4

    def offset(self, row: Any, k: Any) -> Any:
        """Return the offset of an element in bytes."""
        return (k // VECTOR * self.pitch + self.place(row) * VECTOR + k % VECTOR) * self.itemsize

    @cute.jit
    def read_part(self, rX: cute.Tensor, start, part: cutlass.Constexpr[Any], four: cutlass.Constexpr[int], lanes):
        """Read a part of this thread's rows, of some four k; `start` is the address of its first row in the stage."""
        for v in cutlass.range_constexpr(part.rows):
            row = cutlass.const_expr(part.row + v)
            offset = cutlass.const_expr(self.offset(row // VECTOR * VECTOR * lanes + row % VECTOR, four * VECTOR))
            _read_vector(rX[v, None], start + offset)

    def fragments(self, count: int) -> Any:
        """Return registers for four k of `count` rows."""
        return cute.make_rmem_tensor(cute.make_layout((VECTOR, VECTOR, count // VECTOR)), Float32)

    def of_step(self, rX: Any, step: int) -> Any:
        """Return the fragments of one k, (element, vector)."""
        return rX[step % VECTOR, None, None]

    def read(self, rX: Any, start: Any, step: int, lanes: int) -> None:
        """Read four k of all of this thread's rows; `start` is the address of its first row in the stage."""
        self.read_rows(rX, start, step, (0, VECTOR * cute.size(rX, mode=[2])))

    @cute.jit
    def read_rows(self, rX: cute.Tensor, start, step: cutlass.Constexpr[int], rows):
        """Read four k of some of this thread's rows, from the first to before the last of `rows`."""
        for i in cutlass.range_constexpr(*rows):
            row = cutlass.const_expr(i // VECTOR * (VECTOR * self.lanes) + i % VECTOR)
            _read_vector(rX[None, i % VECTOR, i // VECTOR], start + self.offset(row, step))


class TransposingCopies(MaskedCopies):
    """Copies of a K-major operand, which they transpose: each is one element."""

    def step(self, p: Any) -> tuple[Any, Any]:
        line = p * self.lines
        return line % self.stage.extent, line // self.stage.extent * (self.stage.line // self.stage.itemsize)

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

    stage: KMajorStage

    @cute.jit
    def origin(self):
        line, along = self.place()
        return self.stage.row(line), along // self.stage.itemsize

    def step(self, p: Any) -> tuple[Any, Any]:
        line, extent = p * self.lines, self.stage.extent
        return self.stage.row(line % extent), line // extent * (self.stage.line // self.stage.itemsize)

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
        return opaque(Int64(self.stage.depth * self.stage.itemsize))


class VectorCopies(TransposingCopies):
    """Copies of an aligned K-major float32 operand through registers, in vectors along K."""

    stage: SimtStage

    @cute.jit
    def registers(self):
        """Return registers for a k-tile."""
        return cute.make_rmem_tensor(cute.make_layout((self.stage.vector, self.count)), Float32)

    @cute.jit
    def load(self, gX: cute.Tensor, loaded: cute.Tensor, source, mask, p: cutlass.Constexpr[int]):
        """Load vector p of a k-tile: zeros where the mask leaves it out, or where tiles are whole what was there."""
        # Of whole tiles all bits are the same.
        bit = "mov.b32 bit, {$r1};" if self.whole else f"and.b32 bit, {{$r1}}, {1 << p};"
        found = cute.arch.inline_ptx(
            f"{{ .reg .pred inside; .reg .b32 bit; {bit} setp.ne.s32 inside, bit, 0; "
            "mov.b32 {$w0}, {$r2}; mov.b32 {$w1}, {$r3}; mov.b32 {$w2}, {$r4}; mov.b32 {$w3}, {$r5}; "
            "@inside ld.global.L1::no_allocate.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}]; }",
            write_only_types=[Float32] * 4,
            read_only_args=[
                self.piece_source(gX, source, p),
                mask,
                *[loaded[v, p] if self.whole else Float32(0) for v in range(self.stage.vector)],
            ],
        )
        for v in cutlass.range_constexpr(self.stage.vector):
            loaded[v, p] = found[v]

    @cute.jit
    def store(self, loaded: cute.Tensor, target, p: cutlass.Constexpr[int]):
        """Store vector p of a k-tile."""
        for v in cutlass.range_constexpr(self.stage.vector):
            address = self.piece_target(target, p) + self.stage.offset(0, v)
            place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=self.stage.itemsize)
            cute.make_tensor(place, cute.make_layout(1))[0] = loaded[v, p]
