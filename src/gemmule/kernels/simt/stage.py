"""Stages of float32 operands in shared memory, for products by FMAs: k-tiles of MN-major panels, however they come.

A panel is 32 rows (of A, or columns of B) by all k of a k-tile; the rows of a k are contiguous. Threads read vectors of
4 rows. A K-major operand is transposed by its copies, 4 bytes each: a warp copies 4 rows by 8 k, which are whole
sectors of device memory, and with 4 elements of padding after each k all banks of shared memory. Or it passes through
registers: a warp loads vectors of 4 k, whole lines of the first-level cache where a k-tile has so many, and stores
their elements one by one; padding follows each 4 k, as many elements as the warp loads rows. Or vectors are copied into
slots, each read and stored by the thread that copied it: they take no register while they are in flight.

Threads copy consecutive lines, from one panel to the next. Where their number is a multiple of three, so are panels,
and a line of each is copied at once: else those of a thread would begin anywhere in a panel.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, cute

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.async_copy import copy_masked_async
from gemmule.kernels.parts.stage_copies import MaskedCopies, StageLayout

from .config import PANEL, SECTOR, VECTOR_BYTES

_ITEM = FLOAT32.itemsize
#: Bytes of a line of the first-level cache, and lanes of a warp.
_LINE, _LANES = 128, 32


@dataclass(frozen=True)
class SimtStage(StageLayout):
    """Layout of a k-tile; its extent is a multiple of 32. `line` is a line of the copies: what a warp reads at once."""

    itemsize: int = _ITEM
    #: Whether the operand, a K-major one, is loaded by vectors.
    by_vectors: bool = False

    @property
    def panels(self) -> int:
        return self.extent // PANEL

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


class SlotCopies(VectorCopies):
    """Copies of an aligned K-major float32 operand into slots of the stage before its own, in vectors along K."""

    @cute.jit
    def copy(self, gX: cute.Tensor, slots, source, mask, p: cutlass.Constexpr[int]):
        """Issue the asynchronous copy of vector p of a k-tile into its slot, zeros where the mask leaves it out."""
        place = slots + p * self.threads * VECTOR_BYTES
        copy_masked_async(place, self.piece_source(gX, source, p), VECTOR_BYTES, mask, 0 if self.whole else p)

    @cute.jit
    def take(self, loaded: cute.Tensor, slots, p: cutlass.Constexpr[int]):
        """Read vector p of a k-tile from its slot."""
        address = slots + p * self.threads * VECTOR_BYTES
        place = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES)
        cute.autovec_copy(cute.make_tensor(place, cute.make_layout(self.stage.vector)), loaded[None, p])
