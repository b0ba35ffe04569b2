"""Stages of float32 operands in shared memory, for products by FMAs: k-tiles of MN-major panels, however they come.

A panel is 32 rows (of A, or columns of B) by all k of a k-tile; the rows of a k are contiguous. Threads read vectors of
4 rows. A K-major operand is transposed by its copies, 4 bytes each: a warp copies 4 rows by 8 k, which are whole
sectors of device memory, and with 4 elements of padding after each k all banks of shared memory.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.stage_copies import MaskedCopies, StageLayout

from .config import PANEL, SECTOR, VECTOR_BYTES

_ITEM = FLOAT32.itemsize


@dataclass(frozen=True)
class SimtStage(StageLayout):
    """Layout of a k-tile; its extent is a multiple of 32. `line` is a line of the copies: what a warp reads at once."""

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
