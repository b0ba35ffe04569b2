"""Rows of both matrices as whole units, runs of rows that follow one another in the target, and the config of both."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from gemmule.core.dataclass import dataclass
from gemmule.core.dtype import opaque_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import TransposeProblem
from gemmule.core.row_major import VECTOR_BYTES
from gemmule.kernels.transpose.refusals import is_aligned
from gemmule.kernels.transpose.spec import BATCH_DIMS
from gemmule.kernels.transpose.tile_config import TileConfig

#: Threads of a CTA times those of a run are at most 2 to this power: in so many bits a product divides exactly.
SHARE_BITS = 20
# The same of the bytes of a run times those of a row.
_ROW_BITS = 32
# The largest number of a launch.
_MOST = 2**31 - 1
# Bytes of a run: so many, and those that a CTA's last vectors are beyond them, are counted by 32-bit numbers.
_MOST_RUN = 2**31 - (1 << 16)


# Bytes of rows that are copied whole as fast as in blocks, and of both matrices up to which shorter ones are; the same
# of rows that are far apart in source and target.
_LONG_ROW, _FEW = 64, 12 << 20
_LONG_ROW_APART, _FEW_APART = 128, 4 << 20


class Runs(NamedTuple):
    """A permutation of runs, in units: the matrices' rows are runs, and the last axis of the batch rows of a run."""

    units: TransposeProblem  #: The permutation of units, of three batch axes.
    merged: bool  #: Whether runs are of several rows; else the last axis is one of the batch.

    @property
    def rows(self) -> int:
        """Return the rows of a run."""
        return self.units.batch[-1] if self.merged else 1

    @property
    def bytes(self) -> int:
        """Return the bytes of a run."""
        return self.rows * self.units.cols * self.units.itemsize

    @property
    def batch(self) -> int:
        """Return the matrices of runs."""
        return math.prod(self.units.batch) // self.rows

    @property
    def memory(self) -> tuple[int, int]:
        """Return the whole vectors from the source's first element to both ends of its memory, or fewer."""
        source, units = self.units.source, self.units
        extents = zip((units.rows, *units.batch), (source.row_stride, *source.batch_strides), strict=True)
        far = [(extent - 1) * stride for extent, stride in extents]
        before = units.itemsize * sum(min(one, 0) for one in far)
        after = units.itemsize * (sum(max(one, 0) for one in far) + units.cols)
        return max(-(-before // VECTOR_BYTES), -_MOST), min(after // VECTOR_BYTES, _MOST)

    @property
    def divisor(self) -> int:
        """Return the number whose products with places in a run have the row in their upper 32 bits."""
        return -(-(1 << _ROW_BITS) // (self.units.cols * self.units.itemsize))


@dataclass(frozen=True)
class RowsConfig(TileConfig):
    """Runs that a CTA copies, by vectors of the target."""

    vector: int = 16  #: Bytes of a vector: 4, 8 or 16, and a unit at least.
    passes: int = 2  #: Vectors of a thread, each of another run.
    threads: int = 256  #: Threads of a CTA.
    batch: int = 0  #: Whether CTAs take the same runs of all matrices of a batch, then other runs.

    from_zero: ClassVar[frozenset[str]] = frozenset({"batch"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_threads()
        if self.vector not in (4, 8, 16):
            raise ArgumentError(f"config {self}: vector must be 4, 8 or 16")

    @property
    def tile_elements(self) -> int:
        return self.threads * self.passes * self.vector

    def lanes(self, runs: Runs) -> int:
        """Return the threads of a run."""
        held = self._held(runs)
        return -(-held // -(-held // self.threads))

    def abreast(self, runs: Runs) -> int:
        """Return the runs that a CTA copies at once."""
        return self.threads // self.lanes(runs)

    def tiles_of(self, runs: Runs) -> tuple[int, int]:
        """Return the numbers of tiles along runs' numbers and along a run."""
        return -(-runs.units.rows // (self.abreast(runs) * self.passes)), -(-self._held(runs) // self.lanes(runs))

    def tiles(self, problem: TransposeProblem) -> tuple[int, int]:
        return self.tiles_of(runs_of(problem))

    def grid(self, problem: TransposeProblem) -> tuple[int, int, int]:
        runs = runs_of(problem)
        return math.prod(self.tiles_of(runs)) * runs.batch, 1, 1

    def why_not(self, problem: TransposeProblem) -> str | None:
        if (unit := unit_of_rows(problem)) > self.vector:
            return f"rows are moved in units of {unit} bytes, more than a vector"
        if (size := runs_of(problem).bytes) > _MOST_RUN:
            return f"runs of {size} bytes are not counted by 32-bit numbers"
        return super().why_not(problem)

    def _held(self, runs: Runs) -> int:
        """Return the vectors that hold a run at most, which may begin at any unit of the first."""
        return max(-(-(runs.bytes + self.vector - runs.units.itemsize) // self.vector), 1)


def unit_of_rows(problem: TransposeProblem) -> int:
    """Return the most bytes, up to 16, that every row of two matrices contiguous along j begins and ends at."""
    size = VECTOR_BYTES
    while size > problem.itemsize and not all(
        is_aligned(matrix, problem.batch, size) for matrix in (problem.source, problem.target)
    ):
        size //= 2
    return size


@functools.lru_cache(maxsize=256)
def runs_of(problem: TransposeProblem) -> Runs:
    """Return the same permutation of units.

    Rows that follow one another in the target without gaps are merged where units are smaller than vectors: their ends
    are in one vector. Runs are numbered along the longest of the other axes; the axes of the shortest strides in the
    source are the first of the batch.
    """
    unit, item = unit_of_rows(problem), problem.itemsize
    extents = (problem.rows, *problem.batch)
    sources, targets = ((matrix.row_stride, *matrix.batch_strides) for matrix in (problem.source, problem.target))
    axes = list(range(len(extents)))
    inner = next((axis for axis in axes if targets[axis] == problem.cols and extents[axis] > 1), None)
    row = problem.cols * item
    # Vectors have elements of two rows at most.
    if unit == VECTOR_BYTES or row < VECTOR_BYTES or inner is None or (extents[inner] * row * row) >> _ROW_BITS:
        inner = None
    longest = max((axis for axis in axes if axis != inner), key=lambda axis: extents[axis], default=None)
    others = sorted((axis for axis in axes if axis not in (longest, inner)), key=lambda axis: abs(sources[axis]))
    padded = [*others, *(None,) * (BATCH_DIMS - len(others) - (inner is not None))]
    order = [longest, *padded, *([] if inner is None else [inner])]

    def along(values: Sequence[int], missing: int) -> tuple[int, ...]:
        return tuple(missing if axis is None else values[axis] for axis in order)

    def of_units(matrix: StridedMatrix, strides: tuple[int, ...]) -> StridedMatrix:
        row, *batch = (stride * item // unit for stride in along(strides, 0))
        return StridedMatrix(opaque_dtype(unit), rows, cols, row, 1, tuple(batch), max(matrix.alignment, unit))

    cols = problem.cols * item // unit
    rows, *batch = along(extents, 1)
    source, target = of_units(problem.source, sources), of_units(problem.target, targets)
    return Runs(TransposeProblem(rows, cols, tuple(batch), source, target), inner is not None)


def rows_are_short(problem: TransposeProblem) -> bool:
    """Return whether rows that keep their axis are so short that blocks of several axes move them faster."""
    row, size = problem.cols * problem.itemsize, problem.bytes_min
    if row < VECTOR_BYTES or (row < _LONG_ROW and size > _FEW):
        return True
    if row >= _LONG_ROW_APART or size <= _FEW_APART or unit_of_rows(problem) < VECTOR_BYTES:
        return False
    units = runs_of(problem).units
    return units.cols not in (units.source.row_stride, units.target.row_stride)
