"""Bound of the rounding errors of a correct product of floats, for every row.

An element of C is off by at most

    e_ij = g * |alpha| * (|A| |B|)_ij + h * |beta| * |C0_ij| + u_out * |C_ij| + tiny

with g = (K + 16) u for sums in a type of unit roundoff u in any order, plus 2 u' for inputs rounded to u' first, and
h = 4 u. Where (K + 16) u says nothing, from 1/2 on, g = 16 sqrt(K + 16) u: so do roundings add up that are as good as
independent of each other. Where products of float64 may be made of int8, numbers are rounded by d times the norm of
their row of A or column of B, which adds 2 d sqrt(K) |alpha| ||a_i|| ||b_j||.

The signs of t are drawn after C was computed, so by Hoeffding's inequality |sum_j t_j e_ij| exceeds LAMBDA times the
Euclidean norm of row i of e with a probability below 2 exp(-LAMBDA**2 / 2). The norm of row i of |A| |B| is at most
sum_k |a_ik| ||b_k||. The rounding of the check's own float64 sums is added in full.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from gemmule.core.dataclass import dataclass
from gemmule.kernels.emulation.residues import norm_limit

from ...core.dtype import FLOAT8_CERTAIN, INT8_PRODUCTS, NARROW_FLOATS, TF32_SIGNIFICAND, Precision
from ..stores.matrix import AnyDType, Array, MatrixSource
from ..tiles.problem import StreamProblem
from ..tiles.result_rules import plain_kind, sum_dtype
from .block_passes import apply_magnitudes, row_norms

#: Probability that a correct product fails.
FALSE_ALARM = 1e-9
_CHECK_UNIT = 2.0**-53
_FLOAT32_TOP = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RoundingBound:
    """The bounds of a product's rows, and the operands that they are made of."""

    rows: Array  #: Bound for the error of each row times a vector of signs.
    #: Rows that hold values at the end of the type's range, or depend on values that are not finite: their rounding has
    #: no bound.
    unbounded_rows: Array
    #: product, addend, output, tiny: Factors g * |alpha|, h * |beta|, u_out, and the absolute term of one element.
    product: float
    addend: float
    output: float
    tiny: float
    #: alpha, beta: Float or complex. The scalars.
    alpha: Any
    beta: Any
    top: float  #: Largest finite value of the output.
    sum_top: float  #: Largest finite value of the sum.
    saturates: bool  #: Whether the output's type has its largest value where others have infinity.
    norms: float = 0.0  #: Factor 2 d sqrt(K) |alpha|.
    to_nan: bool = False  #: Whether infinities among the operands may become NaN.
    input_top: float = math.inf  #: Size from which an operand may round to infinity before it is multiplied.
    #: Whether the bound holds for every order of summation; else it is that of independent roundings.
    certain: bool = True

    @classmethod
    def measure(
        cls, problem: StreamProblem, result: MatrixSource, *, precision: Precision, vectors: int, memory: int
    ) -> RoundingBound:
        """Go once through every matrix of a product and its result, and return the bounds."""
        a, b, c, alpha, beta = problem.a, problem.b, problem.addend, problem.alpha, problem.beta
        (m, k), n = a.shape, b.shape[1]
        total = sum_dtype(a.dtype, b.dtype)
        # Sums of narrow integers are exact, those of wide ones are made in float64 on their way to a float.
        integers = total.kind in "iu" and max(a.dtype.itemsize, b.dtype.itemsize) <= 2
        if total.kind in "iu":
            total = np.dtype(np.float64)
        unit = unit_roundoff(total)
        # Complex products take a few roundings more.
        lengths = (0 if integers else (k + 16) * (4 if total.kind == "c" else 1)) + 2
        certain = lengths * unit
        gamma = certain / (1 - certain) if certain < 0.5 else 16 * math.sqrt(lengths) * unit
        if precision is Precision.TF32 and total == np.dtype(np.float32):
            gamma += 2.1 * 2.0**-TF32_SIGNIFICAND
        if precision is Precision.FLOAT8 and all(x.dtype.name.startswith("float8") for x in (a, b)):
            gamma += FLOAT8_CERTAIN
        integer = total == np.dtype(np.float64) and precision in INT8_PRODUCTS
        norms = 2 * _rounded_by(INT8_PRODUCTS[precision]) * math.sqrt(k) * abs(alpha) if integer else 0.0
        product, addend, output = gamma * abs(alpha), 4 * unit * abs(beta), unit_roundoff(result.dtype)
        smallest = _limit(total, "smallest_normal")
        tiny = (k + 2) * (1 + abs(alpha)) * smallest + _limit(result.dtype, "smallest_subnormal")
        top = _limit(result.dtype, "max")
        # Sums of integers may be scaled in float32 on their way to a narrower float.
        from_integers = sum_dtype(a.dtype, b.dtype).kind in "iu"
        sum_top = min(_limit(total, "max"), max(top, _FLOAT32_TOP)) if from_integers else _limit(total, "max")
        rounded = precision in (Precision.TF32, Precision.BF16X6)

        reaches_top = np.zeros(m, bool)

        def look(rows: slice, piece: Array) -> None:
            reaches_top[rows] |= ~(np.abs(piece).astype(np.float64) < top).all(axis=1)

        with np.errstate(all="ignore"):
            own = row_norms(result, memory, look)
            norms_b = row_norms(b, memory)
            through = apply_magnitudes(a, norms_b, memory) if alpha != 0 else np.zeros(m)
            added = row_norms(c, memory) if c is not None else np.zeros(m)
            scale = math.sqrt(2 * math.log(2 * max(m, 1) * max(vectors, 1) / FALSE_ALARM))
            random = product * through + addend * added + output * own + tiny * math.sqrt(n)
            if norms:
                random = random + norms * row_norms(a, memory) * np.hypot.reduce(norms_b)
            # Sums over n elements of a row are at most sqrt(n) times its norm.
            check = (
                _CHECK_UNIT * math.sqrt(n) * ((n + k + 8) * abs(alpha) * through + (n + 4) * (abs(beta) * added + own))
            )
            rows = scale * random + 2 * check + np.finfo(np.float64).tiny
        unbounded = reaches_top | ~np.isfinite(rows)
        return cls(
            rows, unbounded, product, addend, output, tiny, alpha, beta, top, sum_top,
            result.dtype.name.startswith("float8"), norms, integer or precision is Precision.BF16X6,
            _FLOAT32_TOP / 2 if rounded else math.inf, certain < 0.5,
        )  # fmt: skip


def _rounded_by(products: int) -> float:
    """Return how much a number is rounded where it becomes an integer, as a share of the norm of its row or column."""
    # The norm is at least half of what it may be, and a number is rounded by half a unit; a hundredth for both.
    mantissa, exponent = norm_limit(products)
    return 1.01 / math.sqrt(math.ldexp(mantissa, exponent))


def unit_roundoff(dtype: AnyDType) -> float:
    """Return the largest relative error of rounding to `dtype`."""
    return _limit(dtype, "eps") / 2


def _limit(dtype: AnyDType, name: str) -> float:
    return float(getattr(ml_dtypes.finfo(_real(dtype)), name))  # type: ignore[no-untyped-call]


def _real(dtype: AnyDType) -> AnyDType:
    if dtype.kind == "c":
        return np.dtype(f"f{dtype.itemsize // 2}")
    if dtype.name in NARROW_FLOATS or plain_kind(dtype) == "f":
        return dtype
    return np.dtype(np.float64)
