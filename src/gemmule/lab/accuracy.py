"""Whether a product is right: every element written, and the errors of sampled rows within their bounds.

The first bound is componentwise: k + 3 roundings of the accumulator on (|A| |B|)ij, and one of the output on |C|ij.
Errors of k roundings cancel, so that where k is large even inputs that were rounded to fewer bits stay below it. The
second bound is on the root of the mean squared error: 2 k u for normal(0, 1) inputs, seven times what sums in order
reach, and one rounding of the output. What a precision allows is added to both. Where it is cheap, the sums of all rows
with random signs are compared as well (Freivalds). Integers must be exact.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from gemmule.core.cpus import usable_cpus
from gemmule.core.dtype import FLOAT8_SEEN, TF32_SIGNIFICAND, DType, Kind, Precision
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem

from .products import Array, as_matrix

#: Rows that are compared.
ROWS = 16
#: Results of up to that many elements are compared as a whole too, by sums with random signs.
WHOLE_ELEMENTS = 1 << 26
# Elements of B that a thread widens at a time.
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
# Bits of a float64 significand.
_EXACT_BITS = 53


@dataclasses.dataclass(frozen=True)
class Reference:
    """Some rows of a product, far more exact than any kernel."""

    problem: GemmProblem  #: The product.
    rows: Array  #: Which rows; the first and the last are among them.
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
    """How far from the reference a product is."""

    #: Largest error in units of u (|A| |B|)ij, with u the unit roundoff of the accumulator, or of a coarser output; 0
    #: for integers.
    error_u: float
    over_bound: float  #: Largest error in units of its bound; a right product has at most 1.
    rms_over_bound: float  #: Root of the mean squared error in units of its bound.
    mean_squared: float  #: Mean of the squared errors.
    failure: str | None  #: What is wrong, in words.


def sampled_rows(m: int, seed: int, count: int = ROWS) -> Array:
    """Return up to `count` rows of m in order: the first, the last, and others at random."""
    if m <= count:
        return np.arange(m)
    inner = np.random.default_rng(seed).choice(np.arange(1, m - 1), count - 2, replace=False)
    return np.sort(np.concatenate([[0], inner, [m - 1]]))


def reference(problem: GemmProblem, inputs: dict[str, Array], rows: Array) -> Reference:
    """Compute rows of a product in a higher precision.

    For inputs of 32 bits and fewer that is float64, exact for integers. float64 inputs are cut into slices whose
    products float64 holds exactly (Ozaki, Ogita, Oishi and Rump, Numerical Algorithms 59, 2012), summed in pairs of
    numbers. Of complex inputs, that of `real_form`.
    """
    factors = as_matrix(inputs["a"], problem.a), as_matrix(inputs["b"], problem.b)
    block_of = _float64_columns
    if problem.accumulator.kind is Kind.COMPLEX:
        problem, factors, block_of = *real_form(problem, *factors), _real_columns
    a, b = factors[0][rows].astype(np.float64), factors[1]
    high, low, size = (np.zeros((len(rows), problem.n)) for _ in range(3))
    signs = _signs(problem)
    sums = np.zeros(problem.k)
    magnitudes = np.abs(a)

    def multiply(columns: slice) -> Array | None:
        part = block_of(b, columns)
        if problem.a.dtype.itemsize == 8:
            high[:, columns], low[:, columns] = _sliced_product(a, part)
        else:
            high[:, columns] = a @ part
        signed = part @ signs[columns] if signs is not None else None
        size[:, columns] = magnitudes @ np.abs(part, out=part)
        return signed

    # Much of it is widening and reading B, which one thread does slowly. Sums are added up in order.
    with concurrent.futures.ThreadPoolExecutor(usable_cpus()) as pool:
        for signed in pool.map(multiply, _blocks(problem.k, problem.n)):
            if signed is not None:
                sums += signed
    if signs is None:
        return Reference(problem, rows, high, low, size)
    return Reference(problem, rows, high, low, size, signs, _times(factors[0], sums))


def real_form(problem: GemmProblem, a: Array, b: Array) -> tuple[GemmProblem, tuple[Array, Array]]:
    """Return a complex product as the real one of the parts of its elements, side by side, with its A, and complex B.

    A row of D is (Re, Im, Re, ...): the same of A, (m, 2 k), times (2 k, 2 n) with the blocks (Re, Im; -Im, Re) of B,
    as `_real_columns` makes them. Errors are held against the bound of each part, with 2 k products.
    """
    a, b = (one.conj() if operand.conj else one for operand, one in ((problem.a, a), (problem.b, b)))
    part = problem.accumulator.part
    m, n, k = problem.m, 2 * problem.n, 2 * problem.k
    real = GemmProblem(m, n, k, (), contiguous(part, m, k), contiguous(part, k, n), None, contiguous(part, m, n))
    return real, (np.ascontiguousarray(a).view(part.numpy()), b)


def _float64_columns(b: Array, columns: slice) -> Array:
    return b[:, columns].astype(np.float64)


def _real_columns(b: Array, columns: slice) -> Array:
    """Return columns of the real form of a complex matrix, as float64: an even number of them, from an even one on."""
    of_b = b[:, columns.start // 2 : columns.stop // 2]
    wide: Array = np.empty((2 * of_b.shape[0], 2 * of_b.shape[1]))
    wide[0::2, 0::2] = wide[1::2, 1::2] = of_b.real
    wide[0::2, 1::2] = of_b.imag
    np.negative(of_b.imag, out=wide[1::2, 0::2], casting="same_kind")
    return wide


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
    # What float64 loses here counts for float64 only.
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


def _blocks(k: int, n: int) -> Iterator[slice]:
    # An even number of columns: those of the parts of complex numbers.
    step = max(2, _BLOCK // max(k, 1) // 2 * 2)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _smallest(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy()).smallest_subnormal)  # type: ignore[no-untyped-call]


def _sliced_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a @ b of float64 matrices as sums of two numbers, to some 2**-60 of the largest terms."""
    bits = (_EXACT_BITS - math.ceil(math.log2(max(a.shape[1], 2)))) // 2
    count = -(-60 // bits)
    left, right = _slices(a, bits, count, axis=1), _slices(b, bits, count, axis=0)
    high, low = np.zeros((a.shape[0], b.shape[1])), np.zeros((a.shape[0], b.shape[1]))
    # What two slices contribute falls with the sum of their numbers: the large first, the negligible not at all.
    for order in range(count):
        for i in range(order + 1):
            term = left[i] @ right[order - i]
            total = high + term
            rest = total - high
            low += (high - (total - rest)) + (term - rest)
            high = total
    return high, low


def _slices(x: Array, bits: int, count: int, axis: int) -> list[Array]:
    """Cut a matrix into parts of `bits` bits below the largest element of each row (axis 1) or column (axis 0)."""
    _, exponent = np.frexp(np.max(np.abs(x), axis=axis, keepdims=True, initial=0.0))
    parts = []
    for number in range(1, count + 1):
        unit = np.ldexp(1.0, exponent - number * bits)
        part = np.rint(x / unit) * unit
        x = x - part
        parts.append(part)
    return parts
