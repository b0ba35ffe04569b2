"""Other forms of products with a C or an epilogue that their kernels do not take as they are."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from gemmule.core.dataclass import dataclass

from .dtype import INT8, MAX_INT8_K, DType, Kind
from .epilogue import ACC, ARITY, MATRIX, SECOND, UP, C, Epilogue, Expression
from .layout import StridedMatrix
from .permutation import transpose_problem
from .problem import GemmProblem, Problem
from .row_major import is_vectorised, row_result
from .tracing import accumulated, accumulated_second, lowered, matrix_c, matrix_input, number_input, operation

if TYPE_CHECKING:
    from .config import Config
    from .spec import KernelSpec

#: C is an input of the epilogue; C is copied into the result first, and read there; the product with the second B of a
#: gated epilogue is written into a workspace first, an input of the epilogue; the sums are written into a workspace, in
#: the accumulators' type, those of the second B into another, and the epilogue computed of these.
INPUT, COPY, GATE, SUMS = "input", "copy", "gate", "sums"
_BETA = "beta"
#: Names of the workspaces of the sums, and what their lines begin at multiples of.
_SUMS, _SECOND_SUMS, _LINE_BYTES = "sums of the product", "sums of the second product", 128
#: Bytes of the largest alignment that makes a difference to a kernel.
_MOST_ALIGNED = 16


@dataclass(frozen=True)
class Step:
    """A launch beside those of the product, before its kernel is known."""

    problem: Problem  #: Its problem.
    operands: dict[str, str]  #: The operands' names by its own.
    is_last: bool = False  #: Whether it follows the product.
    #: The same copy by a kernel of products, which takes any strides; None where it is no copy of bits.
    as_product: Step | None = None
    #: Bytes behind the beginning of what an operand names at which it lies, where not there.
    beyond: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def by(self, spec: KernelSpec) -> Step:
        """Return the step as a kernel computes it."""
        return self.as_product if self.as_product is not None and spec.operation == "gemm" else self


@dataclass(frozen=True)
class Form:
    """The form in which a product is computed, where not as it is."""

    name: str  #: `INPUT`, `COPY`, `GATE` or `SUMS`.
    kernels: tuple[tuple[KernelSpec, Config], ...] = ()  #: Kernels and configs of `steps`.
    batch_dims: ClassVar[int] = 0

    def product(self, problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
        """Return the problem of the kernel, and the names of operands by its own, where they differ."""
        if self.name == INPUT:
            found = with_c_as_input(problem)
            assert found is not None
            return found
        if self.name == COPY:
            return dataclasses.replace(problem, c=problem.d), {"c": "d"}
        if self.name == GATE:
            return with_inputs(problem, keeps_c=True)
        sums = sums_of(problem)
        if _adds_to_sums(problem):
            return dataclasses.replace(problem, c=sums, d=sums), {"c": _SUMS, "d": _SUMS}
        product = dataclasses.replace(problem, c=None, beta=0, d=sums, epilogue=None)
        return (dataclasses.replace(product, alpha=1) if _scales_later(problem) else product), {"d": _SUMS}

    def steps(self, inner: GemmProblem) -> tuple[Step, ...]:
        """Return the further launches of a problem of at most as many batch dimensions as the product's kernel takes.

        Copies are bit by bit, where that is possible, until a kernel is chosen.
        """
        if self.name == INPUT:
            return ()
        if self.name == COPY:
            assert inner.c is not None
            return (copy_step(inner, inner.batch, (inner.c, inner.d), ("c", "d")),)
        found = []
        if self.name == SUMS and _adds_to_sums(inner):
            assert inner.c is not None
            found.append(copy_step(inner, inner.batch, (inner.c, sums_of(inner)), ("c", _SUMS)))
        if inner.epilogue is not None and (second := inner.epilogue.second) is not None:
            problem = dataclasses.replace(
                inner, b=second, c=None, beta=0, d=sums_of(inner), epilogue=None, own_transpose=False
            )
            found.append(Step(problem, {"a": "a", "b": SECOND, "d": _SECOND_SUMS}))
        if self.name == SUMS:
            found.append(Step(*epilogue_of_sums(inner), is_last=True))
        return tuple(found)

    def workspaces(self, inner: GemmProblem) -> dict[str, int]:
        """Return the bytes of the form's own workspaces by name."""
        gated = inner.epilogue is not None and inner.epilogue.second is not None
        names = (_SUMS,) * (self.name == SUMS) + (_SECOND_SUMS,) * (gated and self.name in (GATE, SUMS))
        return dict.fromkeys(names, workspace_bytes(sums_of(inner), inner.batch))


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

    None where the product has no epilogue: it is not one of real floats, or C is none that the accumulators hold.
    """
    c, epilogue = problem.c, problem.epilogue or Epilogue(Expression((ACC,)))
    if c is None or problem.scale_type.kind is not Kind.FLOAT or not _holds_c(problem):
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


def with_inputs(problem: GemmProblem, *, keeps_c: bool = False) -> tuple[GemmProblem, dict[str, str]]:
    """Return the problem with the second product, and with C, as inputs of its epilogue, and their former names.

    C, where `keeps_c`, only if it is not read in place.
    """
    names: dict[str, str] = {}
    if problem.epilogue is not None and problem.epilogue.second is not None:
        problem, names = _with_second_as_input(problem, problem.epilogue)
    if not (keeps_c and is_read_in_place(problem)) and (found := with_c_as_input(problem)) is not None:
        problem, others = found
        names = {new: names.get(old, old) for new, old in others.items()}
    return problem, names


def _with_second_as_input(problem: GemmProblem, epilogue: Epilogue) -> tuple[GemmProblem, dict[str, str]]:
    """Return the problem with the product with the second B as an input of its epilogue, and former names."""
    expression, matrices, numbers = _expression_without_second(epilogue.expression)
    inputs = {**epilogue.inputs(), UP: sums_of(problem)}
    epilogue = dataclasses.replace(
        epilogue,
        expression=expression,
        matrices=tuple(inputs[name] for name in matrices),
        numbers=tuple(epilogue.numbers[int(name[1:])] for name in numbers),
        second=None,
    )
    names = {f"{MATRIX}{place}": _SECOND_SUMS if name == UP else name for place, name in enumerate(matrices)}
    return dataclasses.replace(problem, epilogue=epilogue), names


@functools.lru_cache(maxsize=256)
def _expression_without_second(expression: Expression) -> tuple[Expression, tuple[str, ...], tuple[str, ...]]:
    """Return an expression with an input for the product with the second B, and the inputs' names."""
    return expression_with(expression, {UP: matrix_input(UP, len(expression.steps))})


def expression_with(
    expression: Expression, leaves: dict[str, Any]
) -> tuple[Expression, tuple[str, ...], tuple[str, ...]]:
    """Return an expression with others in place of some leaves, and the inputs' names."""

    def leaf(name: str) -> Any:
        if name in leaves:
            return leaves[name]
        if name in (ACC, UP, C):
            return {ACC: accumulated, UP: accumulated_second, C: matrix_c}[name]()
        of = matrix_input if name[0] == MATRIX else number_input
        return of(name, int(name[1:]))

    operations = {name: functools.partial(operation, name) for name in ARITY}
    return lowered(expression.evaluate(leaf, float, operations), "the epilogue")


@functools.lru_cache(maxsize=256)
def _expression_with_input(
    expression: Expression, unscaled: bool
) -> tuple[Expression, tuple[str, ...], tuple[str, ...]]:
    """Return an expression with an input for C, or with beta times it added to the product, and the inputs' names."""
    c = matrix_input(C, len(expression.steps))
    if expression.names_c:
        return expression_with(expression, {C: c})
    return expression_with(
        expression, {ACC: accumulated() + (c if unscaled else number_input(_BETA, len(expression.steps)) * c)}
    )


def copy_step(
    problem: GemmProblem,
    batch: tuple[int, ...],
    matrices: tuple[StridedMatrix, StridedMatrix],
    names: tuple[str, str],
    *,
    is_last: bool = False,
) -> Step:
    """Return the copy of a matrix to another, bit by bit, or of another type or a conjugate as a product with K = 0.

    Parameters
    ----------
    problem : GemmProblem
        The product of which it is a step.
    batch : tuple of int
        Extents of the matrices' batch.
    matrices, names : tuple
        Source and target, and their names.
    """
    source, target = matrices
    # Accumulators of the operands' types may not hold what the target does.
    types = (problem.a.dtype, problem.b.dtype) if problem.accumulator.holds(source.dtype) else (target.dtype,) * 2
    nothing = dataclasses.replace(_of_nothing(types, target, batch), c=source, beta=1)
    by_product = Step(nothing, {"c": names[0], "d": names[1]}, is_last)
    if source.dtype != target.dtype or source.conj != target.conj:
        return by_product
    before, after = ((*one.batch_strides, one.row_stride, one.col_stride) for one in matrices)
    alignments = min(source.alignment, _MOST_ALIGNED), min(target.alignment, _MOST_ALIGNED)
    copy = transpose_problem((*batch, target.rows, target.cols), before, after, source.dtype.itemsize, alignments)
    return Step(copy, {"a": names[0], "d": names[1]}, is_last, by_product)


def has_sums(problem: GemmProblem) -> bool:
    """Return whether the rest of a product can be computed from its accumulators in a workspace.

    It can for real floats without scales by blocks, for one product of int8 whose sums do not wrap, for complex numbers
    without an epilogue, and for integers into a result whose lines are not contiguous.
    """
    scale, epilogue = problem.scale_type, problem.epilogue
    if not _holds_c(problem):
        return False
    if scale.kind is Kind.INTEGER:
        return epilogue is None and not (problem.d.is_row_major or problem.d.is_col_major)
    if scale.kind is Kind.COMPLEX:
        return epilogue is None
    if _scales_later(problem):
        exact = problem.a.dtype == problem.b.dtype == INT8 and problem.k <= MAX_INT8_K
        return exact and (epilogue is None or epilogue.second is None)
    return epilogue is None or epilogue.scales is None


def _holds_c(problem: GemmProblem) -> bool:
    """Return whether there is no C, or one that the accumulators or the type of the scalars hold.

    An int32 C of a float result of int8 is rounded to float32, as the accumulators are.
    """
    return problem.c is None or any(one.holds(problem.c.dtype) for one in (problem.accumulator, problem.scale_type))


def _scales_later(problem: GemmProblem) -> bool:
    """Return whether alpha is a factor of the sums, which are integers and become floats."""
    return problem.scale_type != problem.accumulator


def _adds_to_sums(problem: GemmProblem) -> bool:
    """Return whether the product is added to C in the workspace of its sums, as its numbers have no epilogue."""
    return problem.c is not None and problem.scale_type.kind is not Kind.FLOAT


def sums_of(problem: GemmProblem) -> StridedMatrix:
    """Return the sums of a product in a workspace, in lines like those of D."""
    shape = problem.m, problem.n
    return workspace_matrix(problem.accumulator, shape, problem.batch, row_major=problem.d.is_row_major)


def workspace_matrix(
    dtype: DType, shape: tuple[int, int], batch: tuple[int, ...], *, row_major: bool = True
) -> StridedMatrix:
    """Return a matrix in a workspace, whose lines are aligned."""
    rows, cols = shape
    unit = _LINE_BYTES // dtype.itemsize
    line = -(-(cols if row_major else rows) // unit) * unit
    steps: list[int] = []
    strides, step = ((line, 1) if row_major else (1, line)), line * (rows if row_major else cols)
    for extent in reversed(batch):
        steps.insert(0, step)
        step *= extent
    return StridedMatrix(dtype, rows, cols, *strides, tuple(steps), 256, padded=True)


def workspace_bytes(matrix: StridedMatrix, batch: tuple[int, ...]) -> int:
    """Return the bytes of such a matrix."""
    lines, line = (matrix.rows, matrix.row_stride) if matrix.is_row_major else (matrix.cols, matrix.col_stride)
    return lines * line * math.prod(batch) * matrix.dtype.itemsize


def epilogue_of_sums(problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
    """Return the epilogue of a product's sums as a product with K = 0, whose C they are, and the operands' names."""
    lowered_problem, names = with_inputs(problem)
    beta = problem.alpha if _scales_later(problem) else 1
    types = problem.a.dtype, problem.b.dtype
    ending = dataclasses.replace(_of_nothing(types, problem.d, problem.batch), c=sums_of(problem), beta=beta)
    return dataclasses.replace(ending, epilogue=lowered_problem.epilogue), {**names, "c": _SUMS}


def _of_nothing(types: tuple[DType, DType], d: StridedMatrix, batch: tuple[int, ...]) -> GemmProblem:
    """Return a product with K = 0 into a matrix, of operands of those types."""
    none = (0,) * len(batch)
    a = StridedMatrix(types[0], d.rows, 0, 0, 0, none)
    b = StridedMatrix(types[1], 0, d.cols, 0, 0, none)
    return GemmProblem(d.rows, d.cols, 0, batch, a, b, None, d, 0, 0)
