"""Stages of float32 operands in shared memory, for products by FMAs: k-tiles of MN-major panels, however they come.

A panel is 32 rows (of A, or columns of B) by all k of a k-tile; the rows of a k are contiguous. Threads read vectors of
4 rows. A K-major operand is transposed by its copies, 4 bytes each: a warp copies 4 rows by 8 k, which are whole
sectors of device memory, and with 4 elements of padding after each k all banks of shared memory. Or it passes through
registers: a warp loads vectors of 4 k, whole lines of the first-level cache where a k-tile has so many, and stores
their elements one by one, or 4 rows of a k together, as matrices; padding follows each 4 k, as many elements as the
warp loads rows. Or vectors are copied into slots, of which a warp loads matrices: a lane gets 4 rows of one k, which it
stores together, padded as elements are.

Threads copy consecutive lines, from one panel to the next. Where their number is a multiple of three, so are panels,
and a line of each is copied at once: else those of a thread would begin anywhere in a panel.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.async_copy import copy_masked_async
from gemmule.kernels.parts.stage_copies import MaskedCopies, StageLayout
from gemmule.kernels.parts.target import target_major

from .config import PANEL, SECTOR, VECTOR_BYTES

_ITEM = FLOAT32.itemsize
#: Bytes of a line of the first-level cache, lanes of a warp, and rows of a matrix that a warp loads.
_LINE, _LANES, _MATRIX = 128, 32, 8
#: Least major compute capability with stores of matrices.
_STORES_MATRICES = 9


@dataclass(frozen=True)
class SimtStage(StageLayout):
    """Layout of a k-tile; its extent is a multiple of 32. `line` is a line of the copies: what a warp reads at once."""

    itemsize: int = _ITEM
    #: by_vectors, by_slots: Whether the operand, a K-major one, is loaded by vectors, or copied into slots.
    by_vectors: bool = False
    by_slots: bool = False

    @property
    def panels(self) -> int:
        return self.extent // PANEL

    @property
    def line(self) -> int:
        if not self.k_major:
            return PANEL * self.itemsize
        wide = self.by_vectors or self.by_slots
        return min(self.depth * self.itemsize, _LINE) if wide else SECTOR * self.itemsize

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


class _PlacedCopies(MaskedCopies):
    """Copies whose targets follow from the row and the k of a piece."""

    stage: SimtStage

    @cute.jit
    def target(self):
        row, k = self.origin()
        return self.stage.offset(row, k)

    @cute.jit
    def piece_target(self, target, p):
        row, k = cutlass.const_expr(self.step(p))
        return target + self.stage.offset(row, k)


class PanelCopies(_PlacedCopies):
    """Copies of an MN-major operand by a multiple of three threads: all panels of a k, then those of the next."""

    @cute.jit
    def origin(self):
        line, along = self.place()
        return line % self.stage.panels * PANEL + along // self.stage.itemsize, line // self.stage.panels

    def step(self, p: Any) -> tuple[Any, Any]:
        return 0, p * (self.lines // self.stage.panels)


class TransposingCopies(_PlacedCopies):
    """Copies of a K-major operand, which they transpose: each is one element."""

    @property
    def by_panels(self) -> bool:
        """Whether lines of all panels are copied at once."""
        return self.threads % 3 == 0

    @cute.jit
    def origin(self):
        return self.first()

    @cute.jit
    def first(self):
        """Return row and k of this thread's first piece, threads in the order of rows."""
        line, along = self.place()
        if cutlass.const_expr(self.by_panels):
            rows = cutlass.const_expr(_LANES * self.size // self.stage.line)
            warp = line // rows
            line = warp % self.stage.panels * PANEL + warp // self.stage.panels * rows + line % rows
        return line, along // self.stage.itemsize

    def step(self, p: Any) -> tuple[Any, Any]:
        # Rows that are copied at once: of all panels, or of one.
        extent, rows = (PANEL, self.lines // self.stage.panels) if self.by_panels else (self.stage.extent, self.lines)
        return p * rows % extent, p * rows // extent * (self.stage.line // self.stage.itemsize)


class VectorCopies(TransposingCopies):
    """Copies of an aligned K-major float32 operand through registers, in vectors along K."""

    @cute.jit
    def registers(self):
        """Return registers for a k-tile: zeros where loads that the mask leaves out write none."""
        loaded = cute.make_rmem_tensor(cute.make_layout((self.stage.vector, self.count)), Float32)
        if cutlass.const_expr(self.whole):
            loaded.fill(Float32(0))
        return loaded

    @cute.jit
    def load(self, gX: cute.Tensor, loaded: cute.Tensor, source, mask, p: cutlass.Constexpr[int]):
        """Load vector p of a k-tile: zeros where the mask leaves it out, or where tiles are whole what was there."""
        # In whole tiles all bits are equal.
        bit = "mov.b32 bit, {$r1};" if self.whole else f"and.b32 bit, {{$r1}}, {1 << self.bit(p)};"
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


class MatrixCopies(VectorCopies):
    """Copies of vectors through registers, whose four k a warp stores as four matrices: 4 rows of one k together.

    Four lanes load the vectors of 4 rows; the lines of a warp are those of `VectorCopies`, in another order. Before
    Hopper, which has no ``stmatrix``, they are `VectorCopies`.
    """

    @property
    def per_line(self) -> int:
        """Vectors of a line."""
        return self.stage.line // VECTOR_BYTES

    @cute.jit
    def first_row(self):
        """Return the first row that this warp copies."""
        tid, _, _ = cute.arch.thread_idx()
        return tid // _LANES * cutlass.const_expr(_LANES // self.per_line)

    @property
    def has_matrices(self) -> bool:
        """Whether the target stores matrices (PTX ISA, stmatrix), while the kernel is traced."""
        return target_major() >= _STORES_MATRICES

    @cute.jit
    def origin(self):
        if cutlass.const_expr(not self.has_matrices):
            return super().origin()
        tid, _, _ = cute.arch.thread_idx()
        four = tid % _LANES // 4
        return self.first_row() + four // self.per_line * 4 + tid % 4, four % self.per_line * self.stage.vector

    @cute.jit
    def target(self):
        if cutlass.const_expr(not self.has_matrices):
            return super().target()
        tid, _, _ = cute.arch.thread_idx()
        k, four = tid % _LANES // _MATRIX, tid % _MATRIX
        return self.stage.offset(
            self.first_row() + four // self.per_line * 4, four % self.per_line * self.stage.vector + k
        )

    @cute.jit
    def store(self, loaded: cute.Tensor, target, p: cutlass.Constexpr[int]):
        """Store vector p of a k-tile."""
        if cutlass.const_expr(self.has_matrices):
            cute.arch.inline_ptx(
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                read_only_args=[self.piece_target(target, p), *[loaded[v, p].bitcast(Int32) for v in range(4)]],
            )
        else:
            super().store(loaded, target, p)


class SlotCopies(TransposingCopies):
    """Copies of an aligned K-major float32 operand into slots of the stage before its own, in vectors along K.

    A slot is the place of a vector in rows of the k-tile, swizzled. Of 32 rows and 4 k a warp loads four matrices of 8
    slots each: rows 4 i, then 4 i + 1, 4 i + 2 and 4 i + 3. A lane then has 4 rows of one k.
    """

    @property
    def vectors(self) -> int:
        """Vectors of a row of the k-tile."""
        return self.stage.depth // self.stage.vector

    @property
    def rows(self) -> int:
        """Rows of a panel that are copied at once."""
        return self.lines // self.stage.panels if self.by_panels else min(self.lines, PANEL)

    @property
    def groups(self) -> int:
        """Groups of warps, each of which loads matrices of its own panels."""
        return 3 if self.by_panels else 1

    @cute.jit
    def origin(self):
        row, k = self.first()
        if cutlass.const_expr(self.rows < PANEL):
            # Further pieces of a thread are of the same 4 rows, and so swizzled alike.
            few = cutlass.const_expr(self.rows // _MATRIX)
            row += row % PANEL // few * 4 + row % few - row % PANEL
        return row, k

    def step(self, p: Any) -> tuple[Any, Any]:
        if self.rows == PANEL:
            return super().step(p)
        parts, panels = PANEL // self.rows, 1 if self.by_panels else self.stage.panels
        row = p % parts * (self.rows // _MATRIX) + p // parts % panels * PANEL
        return row, p // (parts * panels) * (self.stage.line // self.stage.itemsize)

    def slot(self, row: Any, k: Any) -> Any:
        """Return the number of a vector, before slots are swizzled."""
        return row * self.vectors + k // self.stage.vector

    @cute.jit
    def slots(self):
        """Return the offset of this thread's first slot."""
        row, k = self.origin()
        return (self.slot(row, k) ^ (row // 4 % _MATRIX)) * VECTOR_BYTES

    @cute.jit
    def copy(self, gX: cute.Tensor, slots, source, mask, p: cutlass.Constexpr[int]):
        """Issue the asynchronous copy of vector p of a k-tile into its slot, zeros where the mask leaves it out."""
        place = slots + cutlass.const_expr(self.slot(*self.step(p)) * VECTOR_BYTES)
        copy_masked_async(place, self.piece_source(gX, source, p), VECTOR_BYTES, mask, self.bit(p))

    def part(self, p: int) -> tuple[int, int]:
        """Return panels and vectors from a warp's first matrices to those of number p."""
        warps = self.threads // _LANES // self.groups
        if warps >= self.vectors:
            return p * self.groups * (warps // self.vectors), 0
        times = self.vectors // warps
        return p // times * self.groups, p % times * warps

    @cute.jit
    def first_part(self):
        """Return the panel and the vector of this warp's first matrices."""
        tid, _, _ = cute.arch.thread_idx()
        warp = tid // _LANES
        group, inside = warp % self.groups, warp // self.groups
        return group + inside // self.vectors * self.groups, inside % self.vectors

    @cute.jit
    def matrices(self):
        """Return the offset of this lane's slot of a warp's first matrices.

        The order of these terms decides how the compiler orders the loop over K: so 128 x 64 in two groups of warps
        with B in slots has 1.164 issue cycles for each FMA, banks counted, and 1.202 with `place` the other way round.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % _LANES
        panel, vector = self.first_part()
        place = lane % _MATRIX // 2 + lane % 2 * 4
        row = panel * PANEL + place * 4 + lane // _MATRIX
        return ((row * self.vectors + vector) ^ place) * VECTOR_BYTES

    @cute.jit
    def target(self):
        tid, _, _ = cute.arch.thread_idx()
        panel, vector = self.first_part()
        # Eight lanes that store at once have two places with a distance of 4, which cover all banks.
        place = tid // 4 % 2 * 4 + tid % _LANES // _MATRIX
        return self.stage.offset(panel * PANEL + place * 4, vector * self.stage.vector + tid % 4)

    @cute.jit
    def registers(self):
        """Return registers for a k-tile."""
        return cute.make_rmem_tensor(cute.make_layout((self.stage.vector, self.count)), Float32)

    @cute.jit
    def take(self, loaded: cute.Tensor, matrices, p: cutlass.Constexpr[int]):
        """Load matrices p of a k-tile."""
        panel, vector = cutlass.const_expr(self.part(p))
        swizzled = cutlass.const_expr(vector % _MATRIX)
        beyond = cutlass.const_expr(self.slot(panel * PANEL, (vector - swizzled) * self.stage.vector))
        found = cute.arch.inline_ptx(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
            write_only_types=[Int32] * 4,
            read_only_args=[(matrices ^ (swizzled * VECTOR_BYTES)) + beyond * VECTOR_BYTES],
        )
        for v in cutlass.range_constexpr(4):
            loaded[v, p] = found[v].bitcast(Float32)

    @cute.jit
    def store(self, loaded: cute.Tensor, target, p: cutlass.Constexpr[int]):
        """Store the 4 rows that this lane loaded."""
        panel, vector = cutlass.const_expr(self.part(p))
        address = target + self.stage.offset(panel * PANEL, vector * self.stage.vector)
        place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
        cute.autovec_copy(loaded[None, p], cute.make_tensor(place, cute.make_layout(4)))


def copies_of(stage: SimtStage, threads: int, by_matrices: bool) -> type[MaskedCopies]:
    """Return what copies the k-tiles of an operand; `by_matrices` says how vectors in registers are stored."""
    if not stage.k_major:
        return PanelCopies if threads % 3 == 0 else MaskedCopies
    if stage.by_slots:
        return SlotCopies
    if stage.by_vectors:
        return MatrixCopies if by_matrices else VectorCopies
    return TransposingCopies
