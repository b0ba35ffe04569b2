"""Kernels that copy operands for another kernel, vector by vector: their configs, and the lines that they copy."""

from __future__ import annotations

import dataclasses

from gemmule.core.errors import ArgumentError
from gemmule.core.layout import StridedMatrix
from gemmule.core.spec import Config

#: Bytes that leading dimensions of repacked matrices are a multiple of. TMA takes 16, but its boxes have rows of 128
#: bytes, each of which is one line of the L2 cache where it begins at a multiple of 128, elsewhere two.
REPACKED_BYTES = 128
_MAX_BATCH, _MAX_EXTENT = 2**16 - 1, 2**30


@dataclasses.dataclass(frozen=True)
class VectorsConfig(Config):
    """How the operands are copied.

    Attributes
    ----------
    threads : int
        Threads of a CTA, a multiple of 32.
    vectors : int
        Vectors of 16 bytes that each of them copies.
    """

    threads: int = 128
    vectors: int = 2

    def __post_init__(self) -> None:
        if self.threads % 32 or not 32 <= self.threads <= 1024 or self.vectors < 1:
            raise ArgumentError(f"config {self}: threads must be a multiple of 32 up to 1024, vectors 1 or more")


@dataclasses.dataclass(frozen=True)
class CopiedLines:
    """A matrix as the copy sees it: lines of neighbours.

    Attributes
    ----------
    operand : str
        Its name.
    length, lines, matrices : int
        Elements of a line, lines of a matrix, and matrices.
    pitch, step : int
        Elements from one line, and one matrix, to the next.
    rows : bool
        Whether lines are rows.
    """

    operand: str
    length: int
    lines: int
    matrices: int
    pitch: int
    step: int
    rows: bool

    def padded(self, unit: int) -> int:
        """Return the least pitch that holds a line and is a multiple of `unit` elements."""
        return max(-(-self.length // unit), 1) * unit

    def why_not(self, done: str) -> str | None:
        """Say why the matrix is not copied, or None where it can be; `done` is what is done with it, as "packed"."""
        name = self.operand.upper()
        if self.matrices > 1 and not self.step:
            return f"{name} is one matrix for all of the batch; it would be {done} {self.matrices} times"
        if max(self.length, self.lines) > _MAX_EXTENT or self.matrices > _MAX_BATCH:
            return f"{name} is {self.lines} lines of {self.length} elements, {self.matrices} times: too many"
        return None


def copied_lines(operand: str, matrix: StridedMatrix, batch: tuple[int, ...]) -> CopiedLines:
    """Return the lines of a matrix that is row- or column-major, of at most one batch dimension."""
    rows = matrix.lies_in_rows
    lines, length = (matrix.rows, matrix.cols) if rows else (matrix.cols, matrix.rows)
    pitch = matrix.row_stride if rows else matrix.col_stride
    return CopiedLines(operand, length, lines, (batch or (1,))[0], pitch, (matrix.batch_strides or (0,))[0], rows)
