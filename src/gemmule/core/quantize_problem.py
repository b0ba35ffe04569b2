"""Quantisation of a matrix to 8-bit floats with scales, of everything, of each row, or of 128 elements of a row."""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass

from .block_scales import BLOCK
from .layout import StridedMatrix

#: What has a scale of its own.
BY = ("tensor", "row", "block")
#: The smallest scale, so that its reciprocal is finite.
LEAST_SCALE = 2.0**-126


@dataclass(frozen=True)
class QuantizeProblem:
    """Q = X / S rounded to 8-bit floats, with S the largest magnitude of each part over the largest 8-bit float."""

    by: str  #: Parts: ``tensor``, ``row``, or ``block``, 128 elements of a row.
    x: StridedMatrix  #: The matrix, float32, float16 or bfloat16.
    q: StridedMatrix  #: The 8-bit floats.
    #: One scale for each part: (1, 1), (rows, 1) or (rows, blocks); those of one byte are rounded up to powers of two
    #: and stored by their exponents (E8M0).
    scales: StridedMatrix

    #: Launches are not repeated over a batch.
    batch: ClassVar[tuple[int, ...]] = ()
    epilogue: ClassVar[None] = None

    @property
    def bytes_min(self) -> int:
        """Fewest bytes to move: everything read and written once; a scale of everything is known after one reading."""
        readings = 2 if self.by == "tensor" else 1
        return readings * self.x.distinct_bytes(()) + self.q.distinct_bytes(()) + self.scales.distinct_bytes(())

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the operands by their names in launch recipes."""
        return {"x": self.x, "q": self.q, "scales": self.scales}


def scales_shape(by: str, rows: int, cols: int) -> tuple[int, int]:
    """Return the shape of the scales of a matrix."""
    return {"tensor": (1, 1), "row": (rows, 1), "block": (rows, -(-cols // BLOCK))}[by]
