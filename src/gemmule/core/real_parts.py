"""Products of a real and a complex matrix as one real product, which reads and writes complex rows as pairs of floats.

A row of n complex numbers in memory is a row of 2 n floats. So a real A times a complex B is A times the floats of B,
of which every other column is a real part: half of the operations of a complex product, without a copy.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from gemmule.core.dataclass import dataclass

from .dtype import Kind
from .layout import StridedMatrix
from .problem import GemmProblem
from .product_forms import Step, copy_step, is_read_in_place, workspace_bytes, workspace_matrix

if TYPE_CHECKING:
    from .config import Config
    from .spec import KernelSpec

#: The form's name.
PARTS = "parts"
#: Names of the workspaces of matrices that are not row-major: the complex operand, and the result.
ROWS, RESULT = "rows of the complex operand", "rows of the result"


def has_parts(problem: GemmProblem) -> bool:
    """Return whether a product can be computed as a real one: of one complex operand, with real scalars."""
    a, b, c = problem.a, problem.b, problem.c
    if (a.dtype.kind is Kind.COMPLEX) == (b.dtype.kind is Kind.COMPLEX) or problem.d.dtype.kind is not Kind.COMPLEX:
        return False
    if not problem.k or problem.epilogue is not None or problem.needed is not None:
        return False
    if c is not None and not (problem.accumulator.holds(c.dtype) and not complex(problem.beta).imag):
        return False
    return not complex(problem.alpha).imag


def into_rows(problem: GemmProblem) -> GemmProblem:
    """Return the product without C into a row-major result: no step follows it."""
    row_major = problem.b.dtype.kind is Kind.COMPLEX
    d = workspace_matrix(problem.accumulator, (problem.m, problem.n), problem.batch, row_major=row_major)
    return dataclasses.replace(problem, c=None, beta=0, d=d)


@dataclass(frozen=True)
class RealParts:
    """The form of such a product: conjugates, and matrices that are not row-major, are copied before, or after, it."""

    kernels: tuple[tuple[KernelSpec, Config], ...] = ()  #: Kernels and configs of `steps`.
    name: ClassVar[str] = PARTS
    batch_dims: ClassVar[int] = 0

    def product(self, problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
        """Return the real product, and the names of its operands in the problem."""
        found = _Oriented(problem)
        matrices = {"a": found.whole.a, "b": _parts(found.rows), "d": _parts(found.result)}
        if found.whole.c is not None:
            matrices["c"] = _parts(found.result if found.copies_c else found.whole.c)
        real = GemmProblem(
            found.whole.m,
            2 * found.whole.n,
            problem.k,
            problem.batch,
            matrices["a"],
            matrices["b"],
            matrices.get("c"),
            matrices["d"],
            complex(problem.alpha).real,
            complex(problem.beta).real,
            problem.precision,
        )
        return real, found.names

    def steps(self, inner: GemmProblem) -> tuple[Step, ...]:
        """Return the copies of the complex operand into rows, of C into the result, and of the result out of rows."""
        found = _Oriented(inner)
        whole, names = found.whole, found.names
        steps = []
        if found.rows is not whole.b:
            steps.append(copy_step(whole, _distinct(whole.b, whole.batch), (whole.b, found.rows), (found.given, ROWS)))
        if found.copies_c:
            assert whole.c is not None
            steps.append(copy_step(whole, whole.batch, (whole.c, found.result), ("c", names["d"])))
        if found.result is not whole.d:
            steps.append(copy_step(whole, whole.batch, (found.result, whole.d), (RESULT, "d"), is_last=True))
        return tuple(steps)

    def workspaces(self, inner: GemmProblem) -> dict[str, int]:
        """Return the bytes of the form's own workspaces by name."""
        found = _Oriented(inner)
        whole, sizes = found.whole, {}
        if found.rows is not whole.b:
            sizes[ROWS] = workspace_bytes(found.rows, _distinct(whole.b, whole.batch))
        if found.result is not whole.d:
            sizes[RESULT] = workspace_bytes(found.result, whole.batch)
        return sizes


class _Oriented:
    """A product with its complex operand on the right, and where its rows of floats are.

    Attributes
    ----------
    whole : GemmProblem
        The product, or that of the transposes.
    given : str
        Name of the complex operand in the problem.
    rows, result : StridedMatrix
        The complex operand and the result by rows: in place, or in a workspace. A result of another type than the
        accumulators' is converted from one.
    copies_c : bool
        Whether C is copied into the result first, as kernels do not read it in place.
    """

    def __init__(self, problem: GemmProblem) -> None:
        self.given = "b" if problem.b.dtype.kind is Kind.COMPLEX else "a"
        self.whole = whole = problem if self.given == "b" else problem.transposed()
        b, d, sums = whole.b, whole.d, problem.accumulator
        self.rows = b if b.is_row_major and not b.conj else _in_rows(b, whole.batch)
        direct = d.is_row_major and d.dtype == sums
        self.result = d if direct else workspace_matrix(sums, (whole.m, whole.n), whole.batch)
        self.copies_c = whole.c is not None and not (direct and _is_c_in_rows(whole))

    @property
    def names(self) -> dict[str, str]:
        """Names of the real product's operands in the problem, or of workspaces."""
        result = "d" if self.result is self.whole.d else RESULT
        found = {
            "a": "a" if self.given == "b" else "b",
            "b": self.given if self.rows is self.whole.b else ROWS,
            "d": result,
        }
        if self.whole.c is not None:
            found["c"] = result if self.copies_c else "c"
        return found


def _is_c_in_rows(whole: GemmProblem) -> bool:
    """Return whether C is row-major, and kernels read it as they write D."""
    return whole.c is not None and whole.c.is_row_major and not whole.c.conj and is_read_in_place(whole)


def _distinct(matrix: StridedMatrix, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents of a batch in memory: 1 where one matrix serves a whole dimension."""
    return tuple(extent if step else 1 for step, extent in zip(matrix.batch_strides, batch, strict=True))


def _in_rows(matrix: StridedMatrix, batch: tuple[int, ...]) -> StridedMatrix:
    """Return the copy of a matrix in a workspace; one matrix for all of a batch dimension is copied once."""
    copy = workspace_matrix(matrix.dtype, (matrix.rows, matrix.cols), _distinct(matrix, batch))
    steps = tuple(own if step else 0 for step, own in zip(matrix.batch_strides, copy.batch_strides, strict=True))
    return StridedMatrix(
        copy.dtype, copy.rows, copy.cols, copy.row_stride, 1, steps, copy.alignment, padded=copy.padded
    )


def _parts(matrix: StridedMatrix) -> StridedMatrix:
    """Return the floats of a row-major complex matrix."""
    steps = tuple(2 * step for step in matrix.batch_strides)
    return StridedMatrix(
        matrix.dtype.part, matrix.rows, 2 * matrix.cols, 2 * matrix.row_stride, 1, steps, matrix.alignment,
        padded=matrix.padded,
    )  # fmt: skip
