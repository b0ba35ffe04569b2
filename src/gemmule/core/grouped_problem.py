"""Grouped products: one product a group; the groups' rows, columns or parts of K are contiguous in a matrix.

Or one product a row, with one of several matrices.
"""

from __future__ import annotations

from typing import ClassVar

from gemmule.core.dataclass import dataclass

from .dtype import INT32, DType, Precision, accumulator
from .epilogue import Epilogue
from .layout import StridedMatrix

#: The dimensions that offsets divide among the groups, and the operands that have a matrix for each group then. Of
#: ``row``, numbers say which matrix of B each row has.
AXES = {"m": "b", "n": "a", "k": "d", "row": "b"}
#: Names of the operand in device memory that divides the work.
OFFSETS, MATRICES = "offsets", "matrices"


@dataclass(frozen=True)
class GroupedProblem:
    """D = A @ B for each of several groups, whose ends along one dimension are in device memory.

    The ends are int32: group g has the indices from ``offsets[g - 1]``, or 0, to ``offsets[g]``. What is beyond the
    last end belongs to no group; along M and N, D is zero there. Of ``row``, row i of A is multiplied by matrix
    ``matrices[i]`` of B, also int32; where B has no such matrix, D is zero.
    """

    #: The divided dimension. ``m``: B has a matrix for each group; ``n``: A has; ``k``: D has; ``row``: B has `groups`.
    axis: str
    #: m, n, k, groups: Extents, that along `axis` of all groups together, and how many groups there are.
    m: int
    n: int
    k: int
    groups: int
    #: a, b, d: The operands: A is (m, k), B is (k, n), D is (m, n), with one batch stride where there is one for each
    #: group.
    a: StridedMatrix
    b: StridedMatrix
    d: StridedMatrix
    #: Of groups along m: its matrices, and a second B, have one batch stride for the groups. What is beyond the last
    #: end is zero all the same.
    epilogue: Epilogue | None = None
    precision: Precision = Precision.IEEE  #: As of `GemmProblem`.

    #: Launches are not repeated over a batch.
    batch: ClassVar[tuple[int, ...]] = ()

    @property
    def accumulator(self) -> DType:
        """Type of the accumulators."""
        return accumulator(self.a.dtype, self.b.dtype)

    @property
    def divider(self) -> str:
        """Name of the operand that divides the work: the groups' ends, or the rows' matrices."""
        return MATRICES if self.axis == "row" else OFFSETS

    @property
    def num_b(self) -> int:
        """Number of matrices B of each group: 2 with a gated epilogue."""
        return 1 if self.epilogue is None or self.epilogue.second is None else 2

    @property
    def flop(self) -> int:
        """Multiplications and additions, if the groups fill the divided dimension."""
        return 2 * self.m * self.n * self.k * self.num_b

    @property
    def bytes_min(self) -> int:
        """Fewest bytes to move: each element of an input read once, the output written once."""
        return sum(x.distinct_bytes(self.batch_of(name)) for name, x in self.operands().items())

    def batch_of(self, operand: str) -> tuple[int, ...]:
        """Return the groups as a batch for operands that have a matrix for each, else no batch."""
        of_all = {OFFSETS, MATRICES, *AXES.values()} - {AXES[self.axis]}
        return () if operand in of_all else (self.groups,)

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the operands by their names in launch recipes."""
        count = self.m if self.divider == MATRICES else self.groups
        numbers = StridedMatrix(INT32, 1, count, count, 1, (), INT32.itemsize)
        given = {"a": self.a, "b": self.b, self.divider: numbers, "d": self.d}
        return given if self.epilogue is None else given | self.epilogue.operands()
