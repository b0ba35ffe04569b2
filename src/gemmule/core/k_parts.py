"""Products of a long K and a small result as a batch of products over parts of K, whose results are then added.

A part of K is a view of A and B: the batch's strides are as many columns of A, and rows of B. Their results are written
into a workspace in the accumulators' type. Each further launch adds eight of them, as the epilogue of a product with
K = 0, whose C is the first; the last one computes the rest of the product too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from gemmule.core.dataclass import dataclass

from .dtype import Kind, Precision
from .epilogue import ACC, MATRIX, Epilogue, Expression
from .layout import StridedMatrix
from .problem import GemmProblem, split_batch
from .product_forms import (
    Step,
    expression_with,
    has_sums,
    with_inputs,
    workspace_bytes,
    workspace_matrix,
)
from .tracing import accumulated, matrix_input

if TYPE_CHECKING:
    from .config import Config
    from .spec import KernelSpec

#: The form's name, and its workspace.
K_PARTS, SUMS_OF_PARTS = "k_parts", "sums of the parts of k"
#: Results that a launch adds, and numbers of parts.
_ADDED = 8
PARTS = (_ADDED, _ADDED**2)
#: Least K, and most elements of the result: less fills a GPU by the kernels' own parts of K, of complex numbers by
#: fewer, or by tiles.
_LEAST_K, _LEAST_COMPLEX_K, _MOST_ELEMENTS = 2**13, 2**11, 2**16
#: Bytes that a part's K is a multiple of, where K is one.
_UNIT_BYTES = 64
#: Name of the result of part 1, 2 ... among an epilogue's inputs.
_PART = "part"


def has_k_parts(problem: GemmProblem) -> bool:
    """Return whether a product may be computed so: one of floats or complex numbers, of a long K and a small result."""
    epilogue, kind = problem.epilogue, problem.accumulator.kind
    least = _LEAST_COMPLEX_K if kind is Kind.COMPLEX else _LEAST_K
    if problem.k < least or problem.m * problem.n > _MOST_ELEMENTS or not problem.m * problem.n:
        return False
    if math.prod(problem.batch) != 1 or problem.needed is not None:
        return False
    if problem.precision not in (Precision.IEEE, Precision.TF32, Precision.FLOAT8):
        return False
    if kind is Kind.COMPLEX:
        lines = problem.d.is_row_major or problem.d.is_col_major
        return problem.c is None and problem.d.dtype == problem.accumulator and lines and not problem.d.conj
    plain = epilogue is None or not (epilogue.second or epilogue.absmax or epilogue.scales)
    return kind is Kind.FLOAT and plain and has_sums(problem)


@dataclass(frozen=True)
class KParts:
    """The form of such a product."""

    parts: int  #: Number of parts of K, of `PARTS`; what is left of K is another product.
    kernels: tuple[tuple[KernelSpec, Config], ...] = ()  #: Kernels and configs of `steps`.
    name: ClassVar[str] = K_PARTS
    batch_dims: ClassVar[int] = 0

    def product(self, problem: GemmProblem) -> tuple[GemmProblem, dict[str, str]]:
        """Return the batch of products over the parts of K, and the names of its operands."""
        one = split_batch(problem, 1)[0]
        k = self._part(one)
        a = dataclasses.replace(one.a, cols=k, batch_strides=(k * one.a.col_stride,))
        b = dataclasses.replace(one.b, rows=k, batch_strides=(k * one.b.row_stride,))
        return _summed(one, (self.parts,), (a, b), self._sums(one)), {"d": SUMS_OF_PARTS}

    def steps(self, inner: GemmProblem) -> tuple[Step, ...]:
        """Return the product of what is left of K, and the additions."""
        one = split_batch(inner, 1)[0]
        sums, nbytes = _single(self._sums(one)), self._sums(one).batch_strides[0] * one.accumulator.itemsize
        left = one.k - self.parts * self._part(one)
        found = [self._left(one, left, nbytes)] if left else []
        rounds = self.parts // _ADDED
        if rounds > 1:
            # Of every `rounds` parts the results are added to the first ones, in place.
            several = dataclasses.replace(sums, batch_strides=self._sums(one).batch_strides)
            found.append(_addition(_Rest(one, several, several, (rounds,)), range(0, self.parts, rounds), nbytes))
        numbers = [*range(rounds if rounds > 1 else self.parts), *([self.parts] if left else [])]
        found.append(_addition(_Rest(one, sums, one.d, ()), numbers, nbytes))
        return tuple(found)

    def workspaces(self, inner: GemmProblem) -> dict[str, int]:
        """Return the bytes of the form's own workspace by name."""
        return {SUMS_OF_PARTS: workspace_bytes(self._sums(split_batch(inner, 1)[0]), (self.parts + 1,))}

    def _part(self, one: GemmProblem) -> int:
        """Return K of a part."""
        k = one.k // self.parts
        unit = _UNIT_BYTES // min(one.a.dtype.itemsize, one.b.dtype.itemsize)
        return k // unit * unit if one.k % unit == 0 else k

    def _sums(self, one: GemmProblem) -> StridedMatrix:
        shape = one.m, one.n
        return workspace_matrix(one.accumulator, shape, (self.parts,), row_major=one.d.is_row_major)

    def _left(self, one: GemmProblem, left: int, nbytes: int) -> Step:
        """Return the product of what is left of K, into the place of one more part."""
        begin = one.k - left
        offsets = {
            "a": begin * one.a.col_stride * one.a.dtype.itemsize,
            "b": begin * one.b.row_stride * one.b.dtype.itemsize,
        }
        a = dataclasses.replace(one.a, cols=left, alignment=math.gcd(one.a.alignment, offsets["a"]))
        b = dataclasses.replace(one.b, rows=left, alignment=math.gcd(one.b.alignment, offsets["b"]))
        problem = _summed(one, (), (a, b), _single(self._sums(one)))
        beyond = {**offsets, "d": self.parts * nbytes}
        return Step(problem, {"a": "a", "b": "b", "d": SUMS_OF_PARTS}, beyond=beyond)


@dataclass(frozen=True)
class _Rest:
    """What a launch makes of results of parts."""

    whole: GemmProblem  #: The product.
    sums: StridedMatrix  #: The first of the results.
    target: StridedMatrix  #: What is written: D, or the results again.
    batch: tuple[int, ...]  #: Extents of the batch of both.

    @property
    def is_last(self) -> bool:
        """Whether the rest of the product is computed too."""
        return self.target is self.whole.d


def _addition(rest: _Rest, numbers: Sequence[int], nbytes: int) -> Step:
    """Return the launch that adds the results of parts, of so many bytes each."""
    whole, row_major = rest.whole, rest.whole.d.is_row_major
    sums, target = (_real(one, row_major=row_major) for one in (rest.sums, rest.target))
    ending, names = with_inputs(whole) if rest.is_last else (None, {})
    own = (ending.epilogue if ending is not None else None) or Epilogue(Expression((ACC,)))
    expression, matrices, numbers_of = _sum_expression(own.expression, len(numbers) - 1)
    inputs = {**own.inputs(), **{f"{_PART}{place}": sums for place in range(1, len(numbers))}}
    values = {f"s{place}": value for place, value in enumerate(own.numbers)}
    operands, beyond = {"c": SUMS_OF_PARTS, "d": "d" if rest.is_last else SUMS_OF_PARTS}, {}
    for place, name in enumerate(matrices):
        is_part = name.startswith(_PART)
        operands[f"{MATRIX}{place}"] = SUMS_OF_PARTS if is_part else names.get(name, name)
        if is_part:
            beyond[f"{MATRIX}{place}"] = numbers[int(name.removeprefix(_PART))] * nbytes
    epilogue = Epilogue(
        expression, tuple(inputs[name] for name in matrices), tuple(values[name] for name in numbers_of)
    )
    nothing = (0,) * len(rest.batch)
    a = StridedMatrix(sums.dtype, target.rows, 0, 0, 0, nothing)
    b = StridedMatrix(sums.dtype, 0, target.cols, 0, 0, nothing)
    problem = GemmProblem(target.rows, target.cols, 0, rest.batch, a, b, sums, target, 0, 1, epilogue=epilogue)
    return Step(problem, operands, is_last=True, beyond=beyond)


@functools.lru_cache(maxsize=256)
def _sum_expression(expression: Expression, count: int) -> tuple[Expression, tuple[str, ...], tuple[str, ...]]:
    """Return an expression of the sum of the first result and `count` others, and the names of its inputs."""
    terms = [accumulated(), *(matrix_input(f"{_PART}{place}", place - 1 - count) for place in range(1, count + 1))]
    while len(terms) > 1:
        terms = [one + other for one, other in zip(terms[::2], terms[1::2], strict=False)] + terms[len(terms) & ~1 :]
    return expression_with(expression, {ACC: terms[0]})


def _single(matrix: StridedMatrix) -> StridedMatrix:
    """Return the first matrix of a batch."""
    return dataclasses.replace(matrix, batch_strides=())


def _summed(
    whole: GemmProblem, batch: tuple[int, ...], factors: tuple[StridedMatrix, StridedMatrix], sums: StridedMatrix
) -> GemmProblem:
    """Return the product, or batch of products, of parts of K."""
    a, b = factors
    m, n = whole.m, whole.n
    return GemmProblem(m, n, a.cols, batch, a, b, None, sums, whole.alpha, 0, whole.precision)


def _real(matrix: StridedMatrix, *, row_major: bool) -> StridedMatrix:
    """Return the floats of a complex matrix whose lines are contiguous; another matrix as it is."""
    if matrix.dtype.kind is not Kind.COMPLEX:
        return matrix
    steps = tuple(2 * step for step in matrix.batch_strides)
    rows, cols, lines = matrix.rows, matrix.cols, 2 * (matrix.row_stride if row_major else matrix.col_stride)
    shape = (rows, 2 * cols, lines, 1) if row_major else (2 * rows, cols, 1, lines)
    return StridedMatrix(matrix.dtype.part, *shape, steps, matrix.alignment, padded=matrix.padded)
