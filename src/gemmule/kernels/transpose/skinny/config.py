"""The config of transposes of matrices with a short side, and their places in shared memory."""

from __future__ import annotations

import math

from gemmule.core.dataclass import dataclass
from gemmule.core.errors import ArgumentError
from gemmule.core.problem import TransposeProblem
from gemmule.kernels.transpose.skinny.paddings import padding_of, row_units
from gemmule.kernels.transpose.tile_config import MAX_SHARED, SECTOR, WARP, WORD, TileConfig

# Rows of which a thread holds words, at most.
_WOVEN = 8


def structures_side(problem: TransposeProblem) -> str | None:
    """Return which side is an array of structures: its rows are the shorter ones and have no gaps. None for neither."""
    if problem.cols <= problem.rows:
        return "target" if problem.target.row_stride == problem.cols or problem.rows == 1 else None
    return "source" if problem.source.col_stride == problem.rows or problem.cols == 1 else None


@dataclass(frozen=True)
class SkinnyConfig(TileConfig):
    """Span of a matrix with a short side."""

    span_bytes: int = 2048  #: Bytes of each long row that a CTA holds: a power of 2 from 256.
    threads: int = 256  #: Threads of a CTA: whole warps.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads % WARP or self.threads > 1024:
            raise ArgumentError(f"config {self}: threads must be a multiple of {WARP} up to 1024")
        if self.span_bytes & (self.span_bytes - 1) or self.span_bytes < 256:
            raise ArgumentError(f"config {self}: span_bytes must be a power of 2 from 256")

    @property
    def tile_elements(self) -> int:
        return self.span_bytes

    def unit(self, itemsize: int) -> int:
        """Return the bytes of an access."""
        return max(itemsize, WORD)

    def span(self, itemsize: int) -> int:
        """Return the elements of a long row that a CTA moves.

        It holds those from a sector's beginning, which a row may begin before and a word may begin within.
        """
        return (self.span_bytes - 2 * SECTOR) // itemsize

    def before(self, itemsize: int) -> int:
        """Return the elements before a span that a tile holds: up to the beginning of a sector."""
        return SECTOR // itemsize - 1

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        item = problem.itemsize
        count = -(-(max(problem.rows, problem.cols) + self.before(item)) // self.span(item))
        return (1, count) if problem.cols > problem.rows else (count, 1)

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        return math.prod(super().grid(problem)), 1, 1

    def step(self, short: int, itemsize: int) -> int:
        """Return the units of structures that threads move at once.

        They are whole structures that fill whole units, and the next ones begin where a sector does if threads suffice.
        """
        sectors = math.lcm(short, SECTOR // self.unit(itemsize))
        return self.threads // sectors * sectors or self.threads // short * short

    def units(self, short: int, itemsize: int) -> float:
        """Return the units of a thread."""
        units = self.span_bytes // self.unit(itemsize)
        # Threads beyond those of a row have nothing to weave.
        return short * units / (min(self.threads, units) if self.weaves(short, itemsize) else self.threads)

    def weaves(self, short: int, itemsize: int) -> bool:
        """Return whether threads exchange the elements of words of all rows in registers."""
        return itemsize < WORD and 1 < short <= _WOVEN

    def padding(self, short: int, itemsize: int) -> int | None:
        """Return the power of 2 of the units of structures after which one of padding follows, None for no padding."""
        return padding_of(short, self.unit(itemsize))

    def pitch(self, problem: TransposeProblem) -> int:
        """Return the bytes in shared memory from a long row of the source to the next."""
        unit, line = self.unit(problem.itemsize), problem.source.col_stride * problem.itemsize
        return row_units(problem.cols, problem.itemsize, self.span_bytes) * unit + line % unit

    def span_shared_bytes(self, problem: TransposeProblem) -> int:
        """Return the shared memory of a CTA: long rows, or structures with padding."""
        short, item = min(problem.rows, problem.cols), problem.itemsize
        if structures_side(problem) == "source":
            padding, size = self.padding(short, item), self.span_bytes * short
            return size if padding is None else size + (size >> padding) + self.unit(item)
        woven = self.threads * (short | 1) * WORD if self.weaves(short, item) else 0
        return max(short * self.pitch(problem) + WORD, woven)

    def why_not(self, problem: TransposeProblem) -> str | None:
        if min(problem.rows, problem.cols) > self.threads:
            return f"structures have more elements than the {self.threads} threads"
        if self.threads & (self.threads - 1) and self.weaves(min(problem.rows, problem.cols), problem.itemsize):
            return f"rows whose elements are woven are not shared by {self.threads} threads, no power of 2"
        if (size := self.span_shared_bytes(problem)) > MAX_SHARED:
            return f"a span takes {size} bytes of shared memory, more than {MAX_SHARED}"
        return super().why_not(problem)
