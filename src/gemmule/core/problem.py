"""Problems: products and transposes, independent of kernel and device."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple, TypeVar, cast

from gemmule.core.dataclass import dataclass

from .block_triangle import BlockTriangle
from .dtype import FLOAT32, DType, Kind, Precision, accumulator, dtype_named
from .epilogue import SECOND, Epilogue
from .layout import StridedMatrix, contiguous, layout_name


class OperandTypes(NamedTuple):
    """The types of a product's operands, C's where there is one, and the precision: most kernels refuse by these."""

    a: DType
    b: DType
    c: DType | None
    d: DType
    precision: Precision

    def by_name(self) -> dict[str, DType]:
        """Return the types of the operands by their names in launch recipes."""
        named = {"a": self.a, "b": self.b, "c": self.c, "d": self.d}
        return {name: dtype for name, dtype in named.items() if dtype is not None}


@dataclass(frozen=True)
class GemmProblem:
    """D = alpha * A @ B + beta * C over a batch."""

    #: m, n, k: A is (m, k), B is (k, n), C and D are (m, n).
    m: int
    n: int
    k: int
    #: Batch dimensions; every operand has one batch stride for each, zero where it is broadcast.
    batch: tuple[int, ...]
    #: a, b, c, d: The operands. `c` is None when beta is 0: then no C is read. C and D without elements are contiguous.
    a: StridedMatrix
    b: StridedMatrix
    c: StridedMatrix | None
    d: StridedMatrix
    #: alpha, beta: Scalars, applied in the accumulator's type. For K = 0, alpha is 0: as in BLAS, an infinite one has
    #: no effect.
    alpha: complex = 1
    beta: complex = 0
    precision: Precision = Precision.IEEE  #: Least precision.
    epilogue: Epilogue | None = None  #: Function of each element before rounding into D. If it names C, beta is unused.
    #: The needed elements of D, if not all. A hint: kernels may compute the others, whose content is undefined.
    needed: BlockTriangle | None = None
    #: Whether B is A transposed, or its adjoint, in the same memory: without C and epilogue the result is symmetric, or
    #: Hermitian. A hint for kernels; see `mark_own_transpose`.
    own_transpose: bool = False

    def __post_init__(self) -> None:
        if not self.k:
            object.__setattr__(self, "alpha", 0)
        if self.m == 0 or self.n == 0 or 0 in self.batch:
            # NumPy's strides of an array without elements are any, which few kernels take.
            for name, given in (("c", self.c), ("d", self.d)):
                if given is not None:
                    empty = contiguous(given.dtype, self.m, self.n, self.batch)
                    object.__setattr__(self, name, dataclasses.replace(empty, conj=given.conj))

    def __hash__(self) -> int:
        # Of few fields, which differ between products: every choice of a kernel hashes a problem twice.
        a, b, d = self.a, self.b, self.d
        strides = a.row_stride, a.col_stride, b.row_stride, b.col_stride, d.row_stride, d.col_stride
        return hash((self.m, self.n, self.k, self.batch, a.dtype, d.dtype, self.precision, strides))

    @property
    def accumulator(self) -> DType:
        """Type of the accumulators."""
        return accumulator(self.a.dtype, self.b.dtype)

    @property
    def scale_type(self) -> DType:
        """Type of alpha, beta and the epilogue: the accumulators', but float32 where integers become floats."""
        acc = self.accumulator
        return FLOAT32 if acc.kind is Kind.INTEGER and self.d.dtype.kind is Kind.FLOAT else acc

    @property
    def layout(self) -> str:
        """nn, nt, tn or tt."""
        return layout_name(self.a, self.b)

    @property
    def flop(self) -> int:
        """Multiplications and additions of real numbers.

        2 m n k for each matrix of the batch, twice that for each complex factor, and twice with a second B.
        """
        factors = len(self.factors()) - 1
        factors <<= sum(matrix.dtype.kind is Kind.COMPLEX for matrix in (self.a, self.b))
        return 2 * self.m * self.n * factors * self.k * math.prod(self.batch)

    @property
    def flop_min(self) -> int:
        """Fewest operations: one triangle of a symmetric result."""
        symmetric = self.own_transpose and self.c is None and self.epilogue is None
        return self.flop * (self.m + 1) // (2 * self.m) if symmetric and self.m else self.flop

    @property
    def bytes_min(self) -> int:
        """Fewest bytes to move: each element of an input read once, the output written once."""
        once = self.a.distinct_bytes(self.batch) + self.d.distinct_bytes(self.batch)
        if not self.own_transpose:
            once += self.b.distinct_bytes(self.batch)
        if self.c is not None:
            once += self.c.distinct_bytes(self.batch)
        if self.epilogue is not None:
            once += sum([matrix.distinct_bytes(self.batch) for matrix in self.epilogue.operands().values()])
        return once

    @property
    def types(self) -> OperandTypes:
        """Types of the operands, and the precision."""
        c = self.c.dtype if self.c is not None else None
        return OperandTypes(self.a.dtype, self.b.dtype, c, self.d.dtype, self.precision)

    def factors(self) -> dict[str, StridedMatrix]:
        """Return A, B, and the second B of a gated epilogue, by their names in launch recipes."""
        second = None if self.epilogue is None else self.epilogue.second
        return {"a": self.a, "b": self.b} if second is None else {"a": self.a, "b": self.b, SECOND: second}

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the operands by their names in launch recipes."""
        given = {"a": self.a, "b": self.b, "d": self.d}
        if self.c is not None:
            given = {"a": self.a, "b": self.b, "c": self.c, "d": self.d}
        return given if self.epilogue is None else given | self.epilogue.operands()

    def with_operands(self, batch: tuple[int, ...], operands: dict[str, StridedMatrix]) -> GemmProblem:
        """Return the same product over another batch."""
        epilogue = None if self.epilogue is None else self.epilogue.with_operands(operands)
        # `dataclasses.replace` would take three times as long.
        return GemmProblem(
            self.m,
            self.n,
            self.k,
            batch,
            operands["a"],
            operands["b"],
            operands.get("c"),
            operands["d"],
            self.alpha,
            self.beta,
            self.precision,
            epilogue,
            self.needed,
            self.own_transpose,
        )

    def transposed(self) -> GemmProblem:
        """Return the product of the transposes, D.T = B.T @ A.T; the second B of an epilogue is then its second A."""
        a, b, d = self.b.transposed(), self.a.transposed(), self.d.transposed()
        c = self.c.transposed() if self.c is not None else None
        epilogue = self.epilogue.transposed() if self.epilogue is not None else None
        # As in `with_operands`.
        return GemmProblem(
            self.n,
            self.m,
            self.k,
            self.batch,
            a,
            b,
            c,
            d,
            self.alpha,
            self.beta,
            self.precision,
            epilogue,
            self.needed,
            self.own_transpose,
        )


def contiguous_gemm(
    m: int,
    n: int,
    k: int,
    dtypes: tuple[str, ...],
    *,
    batch: tuple[int, ...] = (),
    alpha: float | int = 1,
    beta: float | int = 0,
    precision: Precision = Precision.IEEE,
) -> GemmProblem:
    """Return the product of contiguous matrices, as host arrays have on a GPU.

    Parameters
    ----------
    m, n, k : int
        A is (m, k), B is (k, n), D is (m, n).
    dtypes : tuple of str
        Types of A, B and D, and of C where a matrix is added.
    batch, alpha, beta, precision
        As of `GemmProblem`.

    Raises
    ------
    DTypeError
        If kernels do not support a type.
    """
    a, b, d, *added = map(dtype_named, dtypes)
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a=contiguous(a, m, k, batch),
        b=contiguous(b, k, n, batch),
        c=contiguous(added[0], m, n, batch) if added else None,
        d=contiguous(d, m, n, batch),
        alpha=alpha,
        beta=beta,
        precision=precision,
    )


@dataclass(frozen=True)
class TransposeProblem:
    """D[l, j, i] = S[l, i, j] for every matrix l of the batch, bit by bit."""

    #: rows, cols: Shape of one source matrix; the destination matrix is (cols, rows).
    rows: int
    cols: int
    batch: tuple[int, ...]  #: Batch dimensions.
    #: source, target: `source` is (rows, cols); `target` has the source's indices: element (i, j) of both has the same
    #: value.
    source: StridedMatrix
    target: StridedMatrix
    in_place: bool = False  #: Whether source and target are the same memory, of square matrices.

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.source.dtype.itemsize

    @property
    def bytes_min(self) -> int:
        """Bytes to move: every element read once and written once."""
        return 2 * self.rows * self.cols * math.prod(self.batch) * self.itemsize

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the operands by their names in launch recipes."""
        return {"a": self.source, "d": self.target}

    def with_operands(self, batch: tuple[int, ...], operands: dict[str, StridedMatrix]) -> TransposeProblem:
        """Return the same transpose over another batch."""
        return dataclasses.replace(self, batch=batch, source=operands["a"], target=operands["d"])


Problem = GemmProblem | TransposeProblem
P = TypeVar("P", bound=Problem)


def mark_own_transpose(problem: GemmProblem, same: bool) -> GemmProblem:
    """Return a problem marked by whether its B is its A transposed, in the same memory.

    Parameters
    ----------
    same : bool
        Whether A and B begin at the same address. Caches of launches that are reused at other addresses must have it
        in their keys.
    """
    transposed = problem.a.transposed()
    own = same and problem.b in (transposed, _hermitian_factor(problem, transposed))
    return problem if own == problem.own_transpose else dataclasses.replace(problem, own_transpose=own)


def _hermitian_factor(problem: GemmProblem, transposed: StridedMatrix) -> StridedMatrix | None:
    """Return the factor that makes a product with A Hermitian, if it is complex and its alpha real: A's adjoint."""
    if transposed.dtype.kind is not Kind.COMPLEX or complex(problem.alpha).imag:
        return None
    return dataclasses.replace(transposed, conj=not transposed.conj)


def collapse_batch(
    batch: tuple[int, ...], strides: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge adjacent batch dimensions that have a common stride in every operand.

    Parameters
    ----------
    batch : tuple of int
        Extents, outermost first.
    strides : list of tuple of int
        For each operand, its strides over `batch`.

    Returns
    -------
    batch, strides
        The same elements in the same order with as few dimensions as possible; extents of 1 are dropped.
    """
    extents: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(batch):
        if extent == 1:
            continue
        size = extent
        if extents and all(new[-1] == old[axis] * extent for new, old in zip(merged, strides, strict=True)):
            size *= extents.pop()
            for new in merged:
                new.pop()
        extents.append(size)
        for new, old in zip(merged, strides, strict=True):
            new.append(old[axis])
    return tuple(extents), [tuple(new) for new in merged]


def outer_offsets(batch: tuple[int, ...], strides: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield, for each index of `batch`, every operand's offset in elements."""
    for index in itertools.product(*(range(extent) for extent in batch)):
        yield tuple(sum(i * s for i, s in zip(index, operand, strict=True)) for operand in strides)


def inner_problem(problem: P, keep: int) -> P:
    """Return the problem of one launch, the first that `split_batch` returns."""
    return problem if _is_inner(problem, keep) else split_batch(problem, keep)[0]


def _is_inner(problem: Problem, keep: int) -> bool:
    """Return whether one launch covers all, without merging dimensions: most problems."""
    batch = problem.batch
    return not batch or (len(batch) == 1 <= keep and batch[0] != 1)


def split_batch(problem: P, keep: int) -> tuple[P, tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Split a problem into one with few batch dimensions and the outer dimensions to repeat it over.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        A problem with any number of batch dimensions.
    keep : int
        Batch dimensions that one launch covers.

    Returns
    -------
    inner : GemmProblem or TransposeProblem
        The problem of the longest dimensions, merged where strides allow, at most `keep` of them.
    outer : tuple of int
        Extents of the other dimensions.
    strides : dict of str to tuple of int
        For each operand, its strides over `outer` in elements.
    """
    operands = problem.operands()
    if _is_inner(problem, keep):
        return problem, (), dict.fromkeys(operands, ())
    batch, merged = collapse_batch(problem.batch, [x.batch_strides for x in operands.values()])
    by_extent = sorted(range(len(batch)), key=lambda axis: -batch[axis])
    inner_axes, outer_axes = sorted(by_extent[:keep]), sorted(by_extent[keep:])

    def pick(values: tuple[int, ...], axes: list[int]) -> tuple[int, ...]:
        return tuple(values[axis] for axis in axes)

    # Later matrices may be less aligned than the first.
    moved = {
        name: dataclasses.replace(
            matrix,
            batch_strides=pick(strides, inner_axes),
            alignment=math.gcd(matrix.alignment, *(s * matrix.dtype.itemsize for s in pick(strides, outer_axes))),
        )
        for (name, matrix), strides in zip(operands.items(), merged, strict=True)
    }
    inner = cast("P", problem.with_operands(pick(batch, inner_axes), moved))
    if isinstance(inner, GemmProblem) and inner.epilogue is not None and inner.epilogue.absmax:
        inner = dataclasses.replace(inner, epilogue=dataclasses.replace(inner.epilogue, raises=bool(outer_axes)))
    left = {name: pick(strides, outer_axes) for name, strides in zip(operands, merged, strict=True)}
    return inner, pick(batch, outer_axes), left
