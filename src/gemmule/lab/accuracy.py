"""Accuracy of products: every element written, and the errors of sampled rows within their bounds.

The first bound is componentwise: k + 3 roundings of the accumulator on (|A| |B|)ij, and one of the output on |C|ij.
Errors of k roundings cancel, so that where k is large even inputs that were rounded to fewer bits stay below it. The
second bound is on the root of the mean squared error: 2 k u for normal(0, 1) inputs, seven times what sums in order
reach, and one rounding of the output. What a precision allows is added to both. Where it is cheap, the sums of all rows
with random signs are compared as well (Freivalds). Integers must be exact.
"""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np

from gemmule.core.dtype import FLOAT8_SEEN, TF32_SIGNIFICAND, DType, Kind, Precision
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem

from .products import Array, as_matrix
from .row_products import join_parts, row_products

#: Rows that are compared.
ROWS = 16
#: Results of up to that many elements are compared as a whole too, by sums with random signs.
WHOLE_ELEMENTS = 1 << 26
# Elements that are widened or looked at at a time.
_BLOCK = 1 << 22
#: Bits of the exponent of 16-bit floats: all set where they are infinite or NaN.
_EXPONENTS = {"bfloat16": 0x7F80, "float16": 0x7C00}
# A sum with random signs of n errors may be that many times sqrt(n) times their root mean square.
_SIGMAS = 4
# Root of the mean squared error of sums of 13 bits, 128 of K each, as a share of |C|: four times what a model of them
# has for normal(0, 1) inputs.
_CUT_SUMS = 2.0**-11
# Most that rounding both factors of a product to TF32 changes it by, as a share. A sum of products with random signs
# changes by less than a third of it, as a root of the mean square: by more than all where they keep 8 bits.
_ROUNDED_FACTORS = 2.01 * 2.0**-TF32_SIGNIFICAND


@dataclasses.dataclass(frozen=True)
class Reference:
    """Some rows of a product, far more exact than any kernel."""

    problem: GemmProblem  #: The product.
    rows: Array  #: Indices of the rows, the first and the last included.
    #: high, low: Their values, as sums of two numbers.
    high: Array
    low: Array
    size: Array  #: Elements of the product of the magnitudes, (|A| |B|)ij.
    #: signs, signed_sums: A vector x of random signs, and (A B) x; None where that would take long, or the output may
    #: saturate or wrap.
    signs: Array | None = None
    signed_sums: Array | None = None


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Error of a product against the reference."""

    #: Largest error in units of u (|A| |B|)ij, with u the unit roundoff of the accumulator, or of a coarser output; 0
    #: for integers.
    error_u: float
    over_bound: float  #: Largest error in units of its bound; a right product has at most 1.
    rms_over_bound: float  #: Root of the mean squared error in units of its bound.
    mean_squared: float  #: Mean of the squared errors.
    failure: str | None  #: Description of the fault.


def sampled_rows(m: int, seed: int, count: int = ROWS) -> Array:
    """Return up to `count` rows of m in order: the first, the last, and others at random."""
    if m <= count:
        return np.arange(m)
    inner = np.random.default_rng(seed).choice(np.arange(1, m - 1), count - 2, replace=False)
    return np.sort(np.concatenate([[0], inner, [m - 1]]))


def reference(problem: GemmProblem, inputs: dict[str, Array], rows: Array) -> Reference:
    """Compute rows of a product in a higher precision.

    For inputs of 32 bits and fewer that is float64, exact for integers. Products of float64 inputs are exact to some
    2**-60 of their largest terms. Of complex inputs, that of `real_form`.
    """
    a, b = (as_matrix(inputs[name], matrix) for name, matrix in (("a", problem.a), ("b", problem.b)))
    if problem.accumulator.kind is Kind.COMPLEX:
        return _complex_reference(problem, a, b, rows)

    def block_of(terms: slice, columns: slice, out: Array) -> None:
        out[...] = b[terms, columns]

    signs = _signs(problem)
    vectors = np.zeros((problem.n, 0)) if signs is None else signs[:, None]
    sliced = problem.a.dtype.itemsize == 8
    found = row_products(a[rows].astype(np.float64), block_of, vectors, sliced=sliced)
    sums = None if signs is None else _times(a, found.by_vectors[:, 0])
    return Reference(problem, rows, found.high, found.low, found.size, signs, sums)


def _complex_reference(problem: GemmProblem, a: Array, b: Array, rows: Array) -> Reference:
    """Return the reference of `real_form`: real and imaginary parts of rows of A are multiplied by B's parts."""
    real, conj = real_form(problem), problem.b.conj

    def block_of(terms: slice, columns: slice, out: Array) -> None:
        parts = out.view(np.complex128)
        parts[...] = b[terms, columns.start // 2 : columns.stop // 2]
        if conj:
            np.conjugate(parts, out=parts)

    of_a = a[rows].astype(np.complex128)
    if problem.a.conj:
        np.conjugate(of_a, out=of_a)
    signs = _signs(real)
    vectors = np.zeros((real.n, 0)) if signs is None else np.stack([signs, _turned(signs)], axis=1)
    sliced = real.a.dtype.itemsize == 8
    found = join_parts(row_products(np.concatenate([of_a.real, of_a.imag]), block_of, vectors, sliced=sliced))
    sums = None
    if signs is not None:
        first = a.conj() if problem.a.conj else a
        sums = _times(np.ascontiguousarray(first).view(real.a.dtype.numpy()), found.by_vectors.reshape(-1))
    return Reference(real, rows, found.high, found.low, found.size, signs, sums)


def _turned(signs: Array) -> Array:
    """Return the signs of B's parts for which the real form's other rows, (-Im, Re), have `signs`."""
    turned: Array = (signs.reshape(-1, 2)[:, ::-1] * [1.0, -1.0]).reshape(-1)
    return turned


def real_form(problem: GemmProblem) -> GemmProblem:
    """Return a complex product as the real one of the parts of its elements, side by side.

    A row of D is (Re, Im, Re, ...): the same of A, (m, 2 k), times (2 k, 2 n) with the blocks (Re, Im; -Im, Re) of B.
    Errors are held against the bound of each part, with 2 k products.
    """
    part = problem.accumulator.part
    m, n, k = problem.m, 2 * problem.n, 2 * problem.k
    return GemmProblem(m, n, k, (), contiguous(part, m, k), contiguous(part, k, n), None, contiguous(part, m, n))


def accuracy(reference: Reference, output: Array) -> Accuracy:
    """Hold a product against the reference; `output` was filled with NaN, or what is no likely value, before.

    Parameters
    ----------
    reference : Reference
        Some rows of what it should be.
    output : ndarray
        The whole output, (m, n).
    """
    problem = reference.problem
    if output.dtype.kind == "c":
        output = np.ascontiguousarray(output).view(problem.d.dtype.numpy())
    out, sums = problem.d.dtype, problem.accumulator
    if out.kind is Kind.FLOAT and (bad := _not_finite(output)):
        where = ", ".join(f"({i}, {j})" for i, j in bad[:3])
        return _wrong(f"elements are NaN or infinite or were not written, as {where}")
    got = output[reference.rows]
    if out.kind is Kind.INTEGER:
        expected = reference.high.astype(np.int64).astype(out.numpy())
        wrong = np.argwhere(got != expected)
        if len(wrong):
            i, j = wrong[0]
            return _wrong(f"({reference.rows[i]}, {j}) is {got[i, j]} and should be {expected[i, j]}")
        failure = _wrong_row(reference, output, 0.0)
        return Accuracy(0.0, 0.0, 0.0, 0.0, None) if failure is None else _wrong(failure)
    top = out.max_value
    high, low = reference.high, reference.low
    if out.is_float8:
        high = np.clip(high, -top, top)
    error = np.abs((got.astype(np.float64) - high) - low)
    bound = (
        (problem.k + 3) * sums.unit_roundoff * reference.size + 1.01 * out.unit_roundoff * np.abs(high) + _smallest(out)
    )
    if problem.precision is Precision.FLOAT8:
        bound += FLOAT8_SEEN * reference.size
    if problem.precision is Precision.TF32:
        bound += _ROUNDED_FACTORS * reference.size
    unit = max(sums.unit_roundoff, out.unit_roundoff) * reference.size
    error_u = float(np.max(np.divide(error, unit, out=np.zeros_like(error), where=unit > 0), initial=0.0))
    over = error / bound
    worst = float(np.max(over, initial=0.0))
    mean_squared = float(np.mean(error**2)) if error.size else 0.0
    limit = _rms_bound(reference, high)
    rms_over = math.sqrt(mean_squared) / limit
    failure = None
    if not worst <= 1:
        i, j = np.unravel_index(np.argmax(over), over.shape)
        failure = (
            f"({reference.rows[i]}, {j}) is {float(got[i, j]):.9g} and should be {float(high[i, j]):.9g}, "
            f"{worst:.3g} times the error bound away"
        )
    elif not rms_over <= 1:
        failure = f"the root of the mean squared error is {rms_over:.3g} times its bound: fewer bits than {sums} has"
    elif failure := _wrong_row(reference, output, limit):
        return _wrong(failure)
    return Accuracy(error_u, worst, rms_over, mean_squared, failure)


def _wrong(failure: str) -> Accuracy:
    return Accuracy(math.inf, math.inf, math.inf, math.inf, failure)


def _rms_bound(reference: Reference, high: Array) -> float:
    """Return the bound on the root of the mean squared error.

    Each rounding of a sum in order is at most u times a partial sum: about the root of the sum of squared terms, and in
    the end |C|. For normal(0, 1) inputs (|A| |B|)ij is 2 k / pi and Cij some sqrt(k), and this gives 2 k u.
    """
    problem = reference.problem
    out, u = problem.d.dtype, problem.accumulator.unit_roundoff
    squared = u**2 * ((math.pi * reference.size) ** 2 / 2 + 2 * problem.k * high**2)
    squared += (1.01 * out.unit_roundoff * high) ** 2 + _smallest(out) ** 2
    if problem.precision is Precision.FLOAT8:
        squared += (_CUT_SUMS * high) ** 2
    if problem.precision is Precision.TF32:
        squared += (_ROUNDED_FACTORS * high) ** 2
    return math.sqrt(float(np.mean(squared))) if squared.size else 1.0


def _wrong_row(reference: Reference, output: Array, rms: float) -> str | None:
    """Return which row's sum with random signs is not as it should be; `rms` is the bound of an element's error."""
    signs, expected = reference.signs, reference.signed_sums
    if signs is None or expected is None or not output.size:
        return None
    found = _times(output, signs)
    # The rounding to float64 counts for float64 only.
    lost = 2.0**-53 * output.shape[1] * float(np.sqrt(np.mean(reference.size**2))) if rms else 0.0
    away = np.abs(found - expected)
    limit = _SIGMAS * math.sqrt(output.shape[1]) * rms + lost
    i = int(np.argmax(away))
    if away[i] <= limit:
        return None
    return f"the elements of row {i} with random signs sum up to {found[i]:.9g} and should to {expected[i]:.9g}"


def _signs(problem: GemmProblem) -> Array | None:
    out = problem.d.dtype
    if out.itemsize == 1 or problem.m * problem.n > WHOLE_ELEMENTS:
        return None
    return np.random.default_rng(problem.k).choice([-1.0, 1.0], problem.n)


def _times(matrix: Array, vector: Array) -> Array:
    """Return a matrix times a vector of float64, row blocks at a time."""
    step = max(1, (_BLOCK >> 3) // max(matrix.shape[1], 1))
    starts = range(0, matrix.shape[0], step)
    found: Array = np.zeros(matrix.shape[0])
    for start in starts:
        found[start : start + step] = matrix[start : start + step].astype(np.float64) @ vector
    return found


def _not_finite(output: Array) -> list[tuple[int, int]]:
    """Return the first places of a matrix that are not finite, row blocks at a time."""
    step = max(1, _BLOCK // max(output.shape[1], 1))
    exponent = _EXPONENTS.get(output.dtype.name)
    for start in range(0, output.shape[0], step):
        block = output[start : start + step]
        if exponent is not None and not np.any((block.view(np.uint16) & exponent) == exponent):
            # Much faster than the type's own test.
            continue
        places = np.argwhere(~np.isfinite(block))
        if len(places):
            return [(int(i) + start, int(j)) for i, j in places]
    return []


def _smallest(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy()).smallest_subnormal)  # type: ignore[no-untyped-call]
