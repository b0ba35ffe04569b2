"""What a product should be, and how far from it a kernel may be."""

from __future__ import annotations

import math

import numpy as np

from gemmule.core.dtype import DType, Kind, accumulator, dtype_named


def random_matrix(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Fresh random data over the range of the type: normal(0, 1), or every integer."""
    if dtype.kind is Kind.INTEGER:
        limits = np.iinfo(dtype.numpy())
        return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype.numpy())
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if dtype.kind is Kind.COMPLEX else values).astype(dtype.numpy())


def poisoned(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """An output in which an element that was not written shows."""
    values = {Kind.INTEGER: -77, Kind.FLOAT: np.nan, Kind.COMPLEX: complex(np.nan, np.nan)}
    return np.full(shape, values[dtype.kind]).astype(dtype.numpy())


def assert_product(got, a, b, c=None, alpha=1, beta=0) -> float:
    """Hold alpha * a @ b + beta * c against a higher precision; return the error in bounds (1 is the limit).

    The bound is componentwise: k + 3 roundings of the accumulator on |alpha| |A| |B| + |beta| |C|, and one of the
    output. Integers must be exact modulo 2**bits.
    """
    out = dtype_named(got.dtype.name)
    if out.kind is Kind.INTEGER:
        wide = [x.astype(np.int64) for x in (a, b)]
        expected = alpha * (wide[0] @ wide[1]) + (beta * c.astype(np.int64) if c is not None and beta else 0)
        np.testing.assert_array_equal(got, expected.astype(got.dtype))
        return 0.0
    if out.kind is Kind.COMPLEX:
        return _assert_complex(got, a, b, c, alpha, beta)
    sums = accumulator(dtype_named(a.dtype.name), dtype_named(b.dtype.name))
    # float64 products are referred to the 64 significand bits of an x86 long double.
    wide_type = np.longdouble if sums.name == "float64" else np.float64
    wide = [x.astype(wide_type) for x in (a, b)]
    k = a.shape[-1]
    expected = wide_type(alpha) * (wide[0] @ wide[1])
    size = abs(alpha) * (np.abs(wide[0]) @ np.abs(wide[1]))
    if c is not None and beta:
        expected = expected + wide_type(beta) * c.astype(wide_type)
        size = size + abs(beta) * np.abs(c.astype(wide_type))
    if out.is_float8:
        expected = np.clip(expected, -out.max_value, out.max_value)
    smallest = float(smallest_subnormal(out))
    bound = (k + 3) * sums.unit_roundoff * size + out.unit_roundoff * np.abs(expected) * 1.01 + smallest
    error = np.abs(got.astype(wide_type) - expected)
    assert np.isfinite(got.astype(np.float64)).all(), "the output holds NaN or infinity: not every element was written"
    worst = float(np.max(error / bound, initial=0.0))
    assert worst <= 1, (
        f"error is {worst:.3g} times the bound, at {np.unravel_index(np.argmax(error / bound), error.shape)}"
    )
    return worst


def _parts(x):
    """Return a matrix as real and imaginary part, as long doubles: products of both types are exact enough."""
    return np.real(x).astype(np.longdouble), np.imag(x).astype(np.longdouble)


def _complex_terms(left, right):
    """Return the parts of a product, and those of its magnitudes: each part is a real sum of 2 k products."""
    (a, b), (c, d) = left, right
    sizes = tuple(tuple(map(np.abs, pair)) for pair in (left, right))
    (e, f), (g, h) = sizes
    return (a @ c - b @ d, a @ d + b @ c), (e @ g + f @ h, e @ h + f @ g)


def _scaled(scalar, parts, sizes):
    """Return the parts times a scalar, and the magnitudes of the terms."""
    x, y = np.longdouble(np.real(scalar)), np.longdouble(np.imag(scalar))
    (a, b), (c, d) = parts, sizes
    return (x * a - y * b, x * b + y * a), (abs(x) * c + abs(y) * d, abs(x) * d + abs(y) * c)


def _assert_complex(got, a, b, c, alpha, beta) -> float:
    """Hold each part of a complex product: 2 k + 6 roundings on the magnitudes of its terms."""
    expected, size = _scaled(alpha, *_complex_terms(_parts(a), _parts(b)))
    if c is not None and beta:
        addends, sizes = _scaled(beta, _parts(c), tuple(map(np.abs, _parts(c))))
        expected = tuple(x + y for x, y in zip(expected, addends, strict=True))
        size = tuple(x + y for x, y in zip(size, sizes, strict=True))
    assert np.isfinite(got).all(), "the output holds NaN or infinity: not every element was written"
    out = dtype_named(got.dtype.name)
    sums = accumulator(dtype_named(a.dtype.name), dtype_named(b.dtype.name))
    worst = 0.0
    for value, wanted, terms in zip(_parts(got), expected, size, strict=True):
        bound = (2 * a.shape[-1] + 6) * sums.unit_roundoff * terms + out.unit_roundoff * np.abs(wanted) * 1.01
        error = np.abs(value - wanted) / (bound + smallest_subnormal(out.part))
        worst = max(worst, float(np.max(error, initial=0.0)))
    assert worst <= 1, f"error is {worst:.3g} times the bound"
    return worst


def smallest_subnormal(dtype: DType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy()).smallest_subnormal)


def elements_spanned(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the offsets of the first and one past the last element that an array touches."""
    if 0 in shape:
        return 0, 0
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + 1


def size_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
