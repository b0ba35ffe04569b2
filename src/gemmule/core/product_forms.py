"""Other forms of products with a C or an epilogue that their kernels do not take as they are."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

from gemmule.core.dataclass import dataclass

from .dtype import Kind
from .epilogue import ACC, ARITY, MATRIX, UP, C, Epilogue, Expression
from .layout import StridedMatrix
from .permutation import transpose_problem
from .problem import GemmProblem, Problem
from .row_major import is_vectorised, row_result
from .tracing import accumulated, accumulated_second, lowered, matrix_input, number_input, operation

if TYPE_CHECKING:
    from .config import Config
    from .spec import KernelSpec

#: C is an input of the epilogue; C is copied into the result first, and read there; the sums are written into a
#: workspace, in the accumulators' type, and the epilogue computed of these.
INPUT, COPY, SUMS = "input", "copy", "sums"
_BETA = "beta"
#: Name of the workspace of the sums, and what its lines begin at multiples of.
_SUMS, _LINE_BYTES = "sums of the product", 128
#: Bytes of the largest alignment that makes a difference to a kernel.
_MOST_ALIGNED = 16


@dataclass(frozen=True)
class Form:
    """The form in which a product is computed, where not as it is."""

    name: str  #: `INPUT`, `COPY` or `SUMS`.
    #: Kernel and config of a further launch: before the product it copies C, after it it computes the epilogue.
    step: tuple[KernelSpec, Config] | None = None

    @property
    def is_last(self) -> bool:
        """Whether the further launch follows the product."""
        return self.name == SUMS

    def product(self, problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
        """Return the problem of the kernel, and the names of operands by its own, where they differ."""
        if self.name == INPUT:
            found = with_c_as_input(problem)
            assert found is not None
            return found
        if self.name == COPY:
            return dataclasses.replace(problem, c=problem.d), {"c": "d"}
        return dataclasses.replace(problem, c=None, beta=0, d=sums_of(problem), epilogue=None), {"d": _SUMS}

    def further(self, inner: GemmProblem) -> tuple[Problem, dict[str, str]]:
        """Return the problem of the further launch, and the names of operands by its own."""
        if self.name == SUMS:
            return epilogue_of_sums(inner)
        assert self.step is not None
        if self.step[0].operation == "gemm":
            return sum_of_c(inner), {"c": "c", "d": "d"}
        return copy_of_c(inner), {"a": "c", "d": "d"}

    def workspaces(self, inner: GemmProblem) -> dict[str, int]:
        """Return the bytes of the form's own workspaces by name."""
        if self.name != SUMS:
            return {}
        sums = sums_of(inner)
        lines, line = (inner.m, sums.row_stride) if sums.is_row_major else (inner.n, sums.col_stride)
        return {_SUMS: lines * line * math.prod(inner.batch) * sums.dtype.itemsize}


def is_read_in_place(problem: GemmProblem) -> bool:
    """Return whether there is no C, or kernels read it as they write D: of its type, layout and alignment."""
    if problem.c is None:
        return True
    oriented, _, _ = row_result(problem)
    c, d = oriented.c, oriented.d
    assert c is not None
    if not d.is_row_major:
        # Such results are of the kernels that take any strides, of C too.
        return True
    if c == d:
        # It may be the result itself.
        return True
    if c.dtype != d.dtype or not c.is_row_major or (c.rows > 1 and c.row_stride < c.cols):
        return False
    return is_vectorised(c, row_major=True) or not is_vectorised(d, row_major=True)


def with_c_as_input(problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]] | None:
    """Return the problem with C as an input of its epilogue, and the former names of that problem's inputs.

    None where the product has no epilogue: it is not one of real floats, or C is none.
    """
    c, epilogue = problem.c, problem.epilogue or Epilogue(Expression((ACC,)))
    if c is None or problem.accumulator.kind is not Kind.FLOAT or c.dtype.kind is not Kind.FLOAT:
        return None
    expression, matrices, numbers = _expression_with_input(epilogue.expression, problem.beta == 1)
    inputs, values = {**epilogue.inputs(), C: c}, {_BETA: problem.beta.real}
    values |= {f"s{number}": value for number, value in enumerate(epilogue.numbers)}
    epilogue = dataclasses.replace(
        epilogue,
        expression=expression,
        matrices=tuple(inputs[name] for name in matrices),
        numbers=tuple(values[name] for name in numbers),
    )
    names = {f"{MATRIX}{place}": name for place, name in enumerate(matrices)}
    return dataclasses.replace(problem, c=None, beta=0, epilogue=epilogue), names


@functools.lru_cache(maxsize=256)
def _expression_with_input(
    expression: Expression, unscaled: bool
) -> tuple[Expression, tuple[str, ...], tuple[str, ...]]:
    """Return an expression with an input for C, or with beta times it added to the product, and the inputs' names."""
    c = matrix_input(C, len(expression.steps))

    def leaf(name: str) -> Any:
        if name == ACC:
            if expression.names_c:
                return accumulated()
            return accumulated() + (c if unscaled else number_input(_BETA, len(expression.steps)) * c)
        if name in (UP, C):
            return accumulated_second() if name == UP else c
        of = matrix_input if name[0] == MATRIX else number_input
        return of(name, int(name[1:]))

    operations = {name: functools.partial(operation, name) for name in ARITY}
    return lowered(expression.evaluate(leaf, float, operations), "the epilogue")


def copy_of_c(problem: GemmProblem) -> Problem:
    """Return the copy of C into D: bit by bit, or of another type `sum_of_c`."""
    c, d = problem.c, problem.d
    assert c is not None
    if c.dtype != d.dtype:
        return sum_of_c(problem)
    source, target = ((*one.batch_strides, one.row_stride, one.col_stride) for one in (c, d))
    alignments = min(c.alignment, _MOST_ALIGNED), min(d.alignment, _MOST_ALIGNED)
    return transpose_problem((*problem.batch, problem.m, problem.n), source, target, c.dtype.itemsize, alignments)


def sum_of_c(problem: GemmProblem) -> GemmProblem:
    """Return the copy of C into D as a product with K = 0, whose kernels convert, and take any strides."""
    return dataclasses.replace(_without_products(problem), c=problem.c, beta=1)


def has_sums(problem: GemmProblem) -> bool:
    """Return whether a product's epilogue can be computed of its sums: one of one product of real floats."""
    if problem.accumulator.kind is not Kind.FLOAT or (problem.c is not None and problem.c.dtype.kind is not Kind.FLOAT):
        return False
    epilogue = problem.epilogue
    return epilogue is None or (epilogue.second is None and epilogue.scales is None)


def sums_of(problem: GemmProblem) -> StridedMatrix:
    """Return the sums of a product in a workspace, in lines like those of D."""
    rows, cols, dtype = problem.m, problem.n, problem.accumulator
    unit = _LINE_BYTES // dtype.itemsize
    row_major = problem.d.is_row_major
    line = -(-(cols if row_major else rows) // unit) * unit
    steps: list[int] = []
    strides, step = ((line, 1) if row_major else (1, line)), line * (rows if row_major else cols)
    for extent in reversed(problem.batch):
        steps.insert(0, step)
        step *= extent
    return StridedMatrix(dtype, rows, cols, *strides, tuple(steps), 256, padded=True)


def epilogue_of_sums(problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
    """Return the epilogue of a product's sums as a product with K = 0, whose C they are, and the operands' names."""
    found = with_c_as_input(problem)
    lowered_problem, names = (problem, {}) if found is None else found
    ending = dataclasses.replace(_without_products(problem), c=sums_of(problem), beta=1)
    return dataclasses.replace(ending, epilogue=lowered_problem.epilogue), {**names, "c": _SUMS}


def _without_products(problem: GemmProblem) -> GemmProblem:
    """Return a product's result as one of K = 0."""
    a = dataclasses.replace(problem.a, cols=0, row_stride=0, col_stride=0)
    b = dataclasses.replace(problem.b, rows=0, row_stride=0, col_stride=0)
    return GemmProblem(problem.m, problem.n, 0, problem.batch, a, b, None, problem.d, 0, 0)
