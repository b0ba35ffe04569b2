"""Checks a product without computing it again: Freivalds' method with a stated bound.

For a random vector t, C t must be alpha * A (B t) + beta * (C0 t). That takes one pass over each matrix instead of a
product. A wrong element shows with probability at least 1/2 for every vector.

The bound that holds for every correct sum of floats is far above what rounding does, so that a wrong element may hide
below it, though its row stands out. Therefore the rows that deviate most are compared element by element, where the
bound is tight.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Iterator

import numpy as np

from gemmule.core.dataclass import dataclass

from ...core.dtype import Precision
from ...core.errors import MemoryLimitError
from ..stores.matrix import Array, MatrixSource
from ..tiles.memory_budget import at_least, format_bytes
from ..tiles.problem import StreamProblem
from ..tiles.result_rules import plain_kind
from .block_passes import apply
from .modular_check import check_modular
from .rounding_bound import RoundingBound
from .row_check import compare_rows

#: Rows that are compared element by element, those that deviate most.
ROWS = 16
#: Vectors that are tried; a wrong result passes with probability at most 2**-VECTORS.
VECTORS = 16


@dataclass(frozen=True)
class Verdict:
    """The result of checking a product."""

    vectors: int  #: Random vectors tried.
    seed: int  #: Seed of the vectors.
    #: Largest ratio of an error to its bound; the product passes up to 1. For integers the largest difference modulo
    #: their range; there only 0 passes.
    max_error_over_bound: float
    passed: bool  #: Whether everything is within its bound, but for the `unproved` elements.
    #: At most the probability that an element wrong by more than `finds_errors_above` passes.
    missed_probability: float
    finds_errors_above: float  #: Twice the largest bound of a row.
    #: Rows that were compared element by element: those that deviate most, and those that hold values at the end of the
    #: type's range.
    rows_compared: int = 0
    element_bound: float = 0.0  #: Largest bound of an element in these rows.
    #: Elements that the check can neither confirm nor refute: sums that may overflow on their way, or overflow in the
    #: check itself. They are no reason to reject a result.
    unproved: int = 0
    first_unproved: tuple[int, int] | None = None  #: Row and column of the first of them.
    #: Whether an element is beyond a bound that holds for every order of summation. A result that did not pass and is
    #: not proved wrong may be right: the bounds of random vectors, and those of very long sums, are exceeded by chance
    #: or by biased roundings.
    proved_wrong: bool = False
    not_finite: int = 0  #: Elements of the result that are NaN or infinite: their rows are among those compared.

    @property
    def caveat(self) -> str | None:
        """The part that could not be proved, in a sentence; None if there is no such thing."""
        if self.first_unproved is None:
            return None
        row, col = self.first_unproved
        many = "1 element is" if self.unproved == 1 else f"{self.unproved} elements are"
        return (
            f"{many} neither proved right nor wrong, the first at row {row}, column {col}: partial sums there may "
            "overflow, or operands are not finite; scale them, or compute in a wider type, to have them checked"
        )

    def failure(self, output: str, seed: str) -> str:
        """Say of a result that did not pass what was found, what became of it and what to do; `seed` as it is given."""
        if self.proved_wrong:
            return (
                f"{output}: error is {self.max_error_over_bound:.3g} of its bound, at most 1 is allowed; the result "
                f"was not kept; repeat the check with {seed}, and report it if it fails again"
            )
        return (
            f"{output}: not verified: error is {self.max_error_over_bound:.3g} of a bound that a right result may "
            f"exceed, and none of the {self.rows_compared} rows that were computed once more proves it wrong; the "
            f"result is kept; repeat the check with another seed than {seed}"
        )


def verify(
    problem: StreamProblem,
    result: MatrixSource,
    *,
    memory: int,
    precision: Precision = Precision.IEEE,
    vectors: int = VECTORS,
    seed: int | None = None,
) -> Verdict:
    """Check that `result` is the product ``alpha * a @ b + beta * c`` up to rounding.

    Integers are compared exactly, modulo the range that they were summed in. For floats, every row of
    C t - alpha * A (B t) - beta * (C0 t) is held against the bound of `RoundingBound`, and the `ROWS` rows that come
    nearest to theirs are compared element by element.

    Parameters
    ----------
    result : MatrixSource
        The written result.
    memory : int
        Limit in bytes for what the check holds in memory.
    precision : Precision
        Type that the inputs may have been rounded to.
    vectors : int
        Random vectors to try.
    seed : int, optional
        Seed of the vectors; a fresh one if absent.

    Raises
    ------
    MemoryLimitError
        If `memory` does not hold one vector of each length and a block.
    """
    if seed is None:
        seed = secrets.randbits(48)
    a, b, added, alpha, beta = problem.a, problem.b, problem.addend, problem.alpha, problem.beta
    group = vectors_at_a_time(a.shape, b.shape, memory, vectors)
    rng = np.random.default_rng(seed)
    if plain_kind(result.dtype) in "iu":
        largest = 0
        for start in range(0, vectors, group):
            # Zeros and ones: with signs, two errors of half the range would always cancel.
            t = rng.integers(0, 2, (b.shape[1], min(group, vectors - start)), dtype=np.int64)
            scalars = {"alpha": int(alpha.real), "beta": int(beta.real)}
            largest = max(largest, check_modular(a, b, result, t, **scalars, c=added, memory=memory))
        return Verdict(vectors, seed, float(largest), largest == 0, 2.0**-vectors, 0.0, proved_wrong=largest != 0)

    bound = RoundingBound.measure(problem, result, precision=precision, vectors=vectors, memory=memory)
    suspects = bound.unbounded_rows.copy()
    is_complex = any(isinstance(x, complex) for x in (alpha, beta)) or any(
        x.dtype.kind == "c" for x in (a, b, result, added) if x is not None
    )
    dtype = np.dtype(np.complex128 if is_complex else np.float64)
    ratios = np.zeros(result.shape[0])
    for start in range(0, vectors, group):
        signs = 1.0 - 2.0 * rng.integers(0, 2, (b.shape[1], min(group, vectors - start))).astype(np.float64)
        with np.errstate(all="ignore"):
            error = apply(result, signs, memory).astype(dtype, copy=False)
            if alpha != 0:
                error -= alpha * apply(a, apply(b, signs, memory), memory)
            if added is not None:
                error -= beta * apply(added, signs, memory)
            deviation = np.abs(error).max(axis=1, initial=0.0)
            # Sums of the check itself may overflow where the result is right: such rows are compared by element.
            suspects |= ~np.isfinite(deviation)
            ratios = np.fmax(ratios, deviation / bound.rows)
    ratios[suspects] = 0.0
    compared = suspects.copy()
    compared[np.argsort(-ratios, kind="stable")[:ROWS]] = True
    found = compare_rows(a, b, result, added, np.flatnonzero(compared), bound, memory=memory)
    # A row that is right element by element is right, whatever the random vectors find.
    others = _largest(np.where(compared, 0.0, ratios))
    within = np.where(compared & (ratios > 1.0), 1.0, ratios)
    worst = max(found.worst, others, _largest(within))
    above = 2.0 * _largest(np.where(suspects, 0.0, bound.rows))
    return Verdict(
        vectors, seed, worst, worst <= 1.0, 2.0**-vectors, above, int(compared.sum()), found.element_bound,
        found.unproved, found.first_unproved, found.worst > 1.0 and bound.certain,
        found.not_finite,
    )  # fmt: skip


def vectors_at_a_time(a: tuple[int, int], b: tuple[int, int], memory: int, vectors: int = VECTORS) -> int:
    """Return how many vectors are tried together for operands of those shapes, which fit into half of `memory`.

    Raises
    ------
    MemoryLimitError
        If not even one does; the message names the least sufficient value.
    """
    each, rest = _vector_bytes(a, b)
    if memory < 2 * (each + rest):
        raise _too_small(a, b, memory)
    return min((memory // 2 - rest) // each, vectors) if each else vectors


@contextlib.contextmanager
def memory_for_check(a: tuple[int, int], b: tuple[int, int], memory: int) -> Iterator[None]:
    """Refuse a limit that does not hold the check; planning in the block may refuse it for another reason.

    Raises
    ------
    MemoryLimitError
        If the limit is too small for the check or the plan; the message names the value that suffices for both.
    """
    least = 2 * sum(_vector_bytes(a, b))
    try:
        yield
    except MemoryLimitError as error:
        if error.least is None or error.least >= least:
            raise
    if memory < least:
        raise _too_small(a, b, memory)


def _vector_bytes(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes that each vector takes, and those that the check takes besides them."""
    return 8 * (3 * a[0] + a[1] + 2 * b[1]), 8 * (5 * a[0] + a[1] + b[1])


def _too_small(a: tuple[int, int], b: tuple[int, int], memory: int) -> MemoryLimitError:
    least = 2 * sum(_vector_bytes(a, b))
    return MemoryLimitError(
        f"memory limit {format_bytes(memory)} is too small for verifying; {at_least('memory', least, memory)}",
        least,
    )


def _largest(values: Array) -> float:
    """Return the largest value, infinity if one is not a number, 0 if there is none."""
    if values.size == 0:
        return 0.0
    largest = float(values.max())
    return math.inf if math.isnan(largest) else largest
