"""Stages of float32 operands in shared memory, for products by FMAs: k-tiles of rows of A, or of columns of B.

Threads read vectors: of 4 rows in MN-major panels, and in K-major lines of 4 k. A K-major operand whose rows begin
anywhere is transposed into panels by its copies, 4 bytes each.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import cute

from gemmule.core.dtype import FLOAT32
from gemmule.kernels.parts.stage_copies import StageCopies, StageLayout

from .config import PANEL, SECTOR, VECTOR

_ITEM = FLOAT32.itemsize


@dataclasses.dataclass(frozen=True)
class PanelStage(StageLayout):
    """Layout of a k-tile as MN-major panels: 32 rows by all k, the rows of a k contiguous.

    The copies of a K-major operand are of 4 rows by 8 k a warp: whole sectors of device memory, and with 4 elements of
    padding after each k all banks of shared memory. `line` is what a warp reads of a row of the matrix at once.
    """

    itemsize: int = _ITEM

    @property
    def line(self) -> int:
        return (SECTOR if self.k_major else PANEL) * _ITEM

    @property
    def pitch(self) -> int:
        """Elements from one k to the next."""
        return PANEL + VECTOR if self.k_major else PANEL

    @property
    def stage_bytes(self) -> int:
        """Bytes of the stage, with its padding."""
        return self.extent // PANEL * self.depth * self.pitch * _ITEM

    def swizzle(self, line: Any) -> Any:
        del line
        return 0

    def offset(self, row: Any, k: Any) -> Any:
        """Return the offset of an element in bytes."""
        return ((row // PANEL * self.depth + k) * self.pitch + row % PANEL) * _ITEM


@dataclasses.dataclass(frozen=True)
class LineStage(StageLayout):
    """Layout of a k-tile as lines along K, with 4 elements of padding after each 4 lines.

    So the lanes of a warp, whose rows are 4 apart, read vectors from different banks.
    """

    itemsize: int = _ITEM

    @property
    def line(self) -> int:
        return self.depth * _ITEM

    @property
    def stage_bytes(self) -> int:
        """Bytes of the stage, with its padding."""
        return self.extent // VECTOR * (VECTOR * self.depth + VECTOR) * _ITEM

    def swizzle(self, line: Any) -> Any:
        del line
        return 0

    def offset(self, row: Any, k: Any) -> Any:
        """Return the offset of an element in bytes."""
        return (row // VECTOR * (VECTOR * self.depth + VECTOR) + row % VECTOR * self.depth + k) * _ITEM


class PaddedCopies(StageCopies):
    """Copies into a padded stage, one whose `offset` says where an element is."""

    @cute.jit
    def target(self):
        row, k = self.origin()
        return self.stage.offset(row, k)

    @cute.jit
    def piece_target(self, target, p):
        row, k = cutlass.const_expr(self.step(p))
        return target + self.stage.offset(row, k)


class TransposingCopies(PaddedCopies):
    """Copies of a K-major operand into panels: each is one element."""

    def step(self, p: Any) -> tuple[Any, Any]:
        line = p * self.lines
        return line % self.stage.extent, line // self.stage.extent * SECTOR
