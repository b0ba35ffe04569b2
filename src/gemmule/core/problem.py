"""Problems: what is to be computed, apart from where and how."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import TypeVar, cast

from .block_triangle import BlockTriangle
from .dtype import DType, Precision, accumulator
from .epilogue import Epilogue
from .layout import StridedMatrix, layout_name


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """D = alpha * A @ B + beta * C over a batch.

    Attributes
    ----------
    m, n, k : int
        A is (m, k), B is (k, n), C and D are (m, n).
    batch : tuple of int
        Batch dimensions; every operand has one batch stride for each, zero where it is broadcast.
    a, b, c, d : StridedMatrix
        The operands. `c` is None when beta is 0: then no C is read.
    alpha, beta : float or int
        Scalars, applied in the accumulator's type. Where K is 0, alpha is 0: by the rules of BLAS it scales nothing
        then, be it infinite.
    precision : Precision
        What a float32 product may be rounded to.
    epilogue : Epilogue or None
        What is done to each element before it is rounded into D. Where that names C, beta counts nothing.
    needed : BlockTriangle or None
        Which elements of D are needed, where these are not all: the others may hold anything afterwards. Kernels may
        leave them out, and need not.
    own_transpose : bool
        Whether B is A transposed, in the same memory: without C and epilogue the result is symmetric. A hint, which
        kernels may leave aside; see `own_transpose.told`.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a: StridedMatrix
    b: StridedMatrix
    c: StridedMatrix | None
    d: StridedMatrix
    alpha: float | int = 1
    beta: float | int = 0
    precision: Precision = Precision.IEEE
    epilogue: Epilogue | None = None
    needed: BlockTriangle | None = None
    own_transpose: bool = False

    def __post_init__(self) -> None:
        if not self.k:
            object.__setattr__(self, "alpha", 0)

    @property
    def accumulator(self) -> DType:
        """Type that the products are summed in."""
        return accumulator(self.a.dtype, self.b.dtype)

    @property
    def layout(self) -> str:
        """nn, nt, tn or tt."""
        return layout_name(self.a, self.b)

    @property
    def flop(self) -> int:
        """Multiplications and additions, 2 m n k for each matrix of the batch, twice that with a second factor."""
        factors = 2 if self.epilogue is not None and self.epilogue.second is not None else 1
        return 2 * self.m * self.n * factors * self.k * math.prod(self.batch)

    @property
    def flop_min(self) -> int:
        """Those that must be: of the two equal elements of a symmetric result one is computed."""
        symmetric = self.own_transpose and self.c is None and self.epilogue is None
        return self.flop * (self.m + 1) // (2 * self.m) if symmetric and self.m else self.flop

    @property
    def bytes_min(self) -> int:
        """Fewest bytes to move: each element of an input read once, the output written once."""
        once = sum(matrix.distinct_bytes(self.batch) for matrix in self.operands().values())
        return once - self.b.distinct_bytes(self.batch) if self.own_transpose else once

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the operands by the names that launch recipes use."""
        operands = {"a": self.a, "b": self.b, "c": self.c, "d": self.d}
        given = {name: matrix for name, matrix in operands.items() if matrix is not None}
        return given if self.epilogue is None else given | self.epilogue.operands()

    def with_operands(self, batch: tuple[int, ...], operands: dict[str, StridedMatrix]) -> GemmProblem:
        """Return the same product over another batch."""
        epilogue = None if self.epilogue is None else self.epilogue.with_operands(operands)
        # Not by `dataclasses.replace`, which takes three times as long: kernels that rearrange operands do this.
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


@dataclasses.dataclass(frozen=True)
class TransposeProblem:
    """D[l, j, i] = S[l, i, j] for every matrix l of the batch: the bits are moved, not read.

    Attributes
    ----------
    rows, cols : int
        Shape of one source matrix; the destination matrix is (cols, rows).
    batch : tuple of int
        Batch dimensions.
    source, target : StridedMatrix
        `source` is (rows, cols); `target` is described with the source's indices, so that element (i, j)
        of both is the same value.
    in_place : bool
        Whether source and target are the same memory: square matrices, whose elements are exchanged in pairs.
    """

    rows: int
    cols: int
    batch: tuple[int, ...]
    source: StridedMatrix
    target: StridedMatrix
    in_place: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.source.dtype.itemsize

    @property
    def bytes_min(self) -> int:
        """Bytes to move: every element read once and written once."""
        return 2 * self.rows * self.cols * math.prod(self.batch) * self.itemsize

    def operands(self) -> dict[str, StridedMatrix]:
        """Return the operands by the names that launch recipes use."""
        return {"a": self.source, "d": self.target}

    def with_operands(self, batch: tuple[int, ...], operands: dict[str, StridedMatrix]) -> TransposeProblem:
        """Return the same transpose over another batch."""
        return dataclasses.replace(self, batch=batch, source=operands["a"], target=operands["d"])


Problem = GemmProblem | TransposeProblem
P = TypeVar("P", bound=Problem)


def collapse_batch(
    batch: tuple[int, ...], strides: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge neighbouring batch dimensions that all operands walk with one stride.

    Parameters
    ----------
    batch : tuple of int
        Extents, outermost first.
    strides : list of tuple of int
        For each operand, its strides over `batch`.

    Returns
    -------
    batch, strides
        The same elements in the same order with as few dimensions as possible; extents of 1 vanish.
    """
    kept = [axis for axis, extent in enumerate(batch) if extent != 1]
    extents: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis in kept:
        fits = bool(extents) and all(
            new[-1] == old[axis] * batch[axis] for new, old in zip(merged, strides, strict=True)
        )
        if fits:
            extents[-1] *= batch[axis]
            for new, old in zip(merged, strides, strict=True):
                new[-1] = old[axis]
        else:
            extents.append(batch[axis])
            for new, old in zip(merged, strides, strict=True):
                new.append(old[axis])
    return tuple(extents), [tuple(new) for new in merged]


def outer_offsets(batch: tuple[int, ...], strides: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield, for each index of `batch`, every operand's offset in elements."""
    for index in itertools.product(*(range(extent) for extent in batch)):
        yield tuple(sum(i * s for i, s in zip(index, operand, strict=True)) for operand in strides)


def split_batch(problem: P, keep: int) -> tuple[P, tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Split a problem into one with few batch dimensions and what is left to repeat it over.

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
        Extents of the dimensions that are left.
    strides : dict of str to tuple of int
        For each operand, its strides over `outer` in elements.
    """
    operands = problem.operands()
    if not problem.batch or (len(problem.batch) == 1 <= keep and problem.batch[0] != 1):
        # Most problems: nothing is merged and nothing left over.
        return problem, (), dict.fromkeys(operands, ())
    batch, merged = collapse_batch(problem.batch, [x.batch_strides for x in operands.values()])
    by_extent = sorted(range(len(batch)), key=lambda axis: -batch[axis])
    inner_axes, outer_axes = sorted(by_extent[:keep]), sorted(by_extent[keep:])

    def pick(values: tuple[int, ...], axes: list[int]) -> tuple[int, ...]:
        return tuple(values[axis] for axis in axes)

    # The later matrices begin where the outer strides lead, which may be less aligned than the first.
    moved = {
        name: dataclasses.replace(
            matrix,
            batch_strides=pick(strides, inner_axes),
            alignment=math.gcd(matrix.alignment, *(s * matrix.dtype.itemsize for s in pick(strides, outer_axes))),
        )
        for (name, matrix), strides in zip(operands.items(), merged, strict=True)
    }
    inner = cast("P", problem.with_operands(pick(batch, inner_axes), moved))
    left = {name: pick(strides, outer_axes) for name, strides in zip(operands, merged, strict=True)}
    return inner, pick(batch, outer_axes), left
