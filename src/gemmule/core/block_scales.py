"""Scales of 8-bit operands by blocks: of 128 of K, and of one line or 128 lines of A or B."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gemmule.core.dataclass import dataclass

from .layout import StridedMatrix

#: Elements of K of a block, and lines of the larger blocks.
BLOCK = 128
#: Names of the scales in launch recipes.
SCALES = ("scale_a", "scale_b")


@dataclass(frozen=True)
class BlockScales:
    """Scales of A (M, K) and B (K, N), one for each block of 128 of K and `lines_a` rows, or `lines_b` columns."""

    #: Scales of A, a row for each block of rows, a column for each block of K; a stride of 0 broadcasts.
    a: StridedMatrix
    b: StridedMatrix  #: Scales of B, a row for each block of K, a column for each block of columns.
    #: lines_a, lines_b: Rows of A and columns of B in a block: 1 or 128.
    lines_a: int
    lines_b: int

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the scales by their names in launch recipes."""
        return dict(zip(SCALES, (self.a, self.b), strict=True))

    def with_operands(self, operands: Mapping[str, StridedMatrix]) -> BlockScales:
        """Return the scales with other matrices."""
        a, b = (operands[name] for name in SCALES)
        return dataclasses.replace(self, a=a, b=b)

    def transposed(self) -> BlockScales:
        """Return the scales of the transposed product, whose A is B transposed."""
        return BlockScales(self.b.transposed(), self.a.transposed(), self.lines_b, self.lines_a)

    def signature(self) -> tuple[tuple[str, str], ...]:
        """Return the signature's part: the lines of a block of A and of B."""
        first, second = SCALES
        return (first, str(self.lines_a)), (second, str(self.lines_b))
