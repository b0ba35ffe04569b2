"""Epilogues on the host: the same expressions in NumPy, in the type of the sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gemmule.core.normal_distribution import SINGLE

from ..core.dtype import NARROW_FLOATS
from ..core.epilogue import ACC, FAR, MATRIX, UP, C, Expression
from ..executor.tiles import Array
from .arithmetic import choose_arithmetic
from .product import blocks
from .rounding import PIECE, scale_dtype, write

_exact_erf = np.frompyfunc(math.erf, 1, 1)
_exact_erfc = np.frompyfunc(math.erfc, 1, 1)


def new_sum(a: Array, b: Array, out: Array) -> Array:
    """Return an array for the sum of ``a @ b``, in the type in which it is added up; of integers float32."""
    total = choose_arithmetic(a.dtype, b.dtype, out.dtype).total
    return np.empty(out.shape, total if total.kind == "f" else np.float32)


def apply(
    out: Array,
    totals: Sequence[Array],
    expression: Expression,
    c: Array | None,
    matrices: Sequence[Array],
    numbers: Sequence[float],
    *,
    keeps: bool = False,
) -> float:
    """Write an epilogue of sums into `out`, rounded once; return the largest absolute value before that, if wanted.

    Parameters
    ----------
    out : numpy.ndarray
        Any float, any strides.
    totals : sequence of numpy.ndarray, shape of out
        The sum, ``acc`` of the expression, and ``up``, where it has one; float32 or float64, in which it is computed.
    expression : Expression
        Epilogue to compute.
    c : numpy.ndarray or None
        C, where the expression names it.
    matrices : sequence of numpy.ndarray
        ``e0``, ``e1`` ..., broadcastable to the shape of `out`.
    numbers : sequence of float
        ``s0``, ``s1`` ...
    keeps : bool
        Compute the largest absolute value: NaN if one is, and 0 of no values.
    """
    kind = totals[0].dtype
    scale = scale_dtype(kind, out.dtype, 1, 0, None)
    inputs = {f"{MATRIX}{i}": np.broadcast_to(matrix, out.shape) for i, matrix in enumerate(matrices)}
    if c is not None:
        inputs[C] = np.broadcast_to(c, out.shape)
    given = {f"s{i}": kind.type(number) for i, number in enumerate(numbers)}
    inputs |= dict(zip((ACC, UP), totals, strict=False))
    largest = kind.type(0)
    operations = {**_OPERATIONS, **(_DOUBLE if kind.itemsize > _SINGLE else {})}
    with np.errstate(all="ignore"):
        for piece in blocks(out.shape, PIECE):

            def leaf(name: str, piece: Any = piece) -> Any:
                return given[name] if name in given else _as(inputs[name][piece], kind)

            value = np.broadcast_to(expression.evaluate(leaf, kind.type, operations), out[piece].shape)
            if keeps:
                # Keeps NaN.
                largest = np.maximum(largest, np.abs(value).max(initial=0))
            write(out[piece], value, 1, 0, None, scale)
    return float(largest)


def _as(x: Array, kind: np.dtype[Any]) -> Array:
    # Types of ml_dtypes go through float32, which holds each of their values.
    return (x.astype(np.float32) if x.dtype.name in NARROW_FLOATS else x).astype(kind, copy=False)


_SINGLE = np.dtype(np.float32).itemsize


def _gelu(x: Array) -> Array:
    z = np.minimum(np.abs(x), x.dtype.type(SINGLE.edge))
    power = np.zeros_like(z)
    for factor in reversed(SINGLE.factors):
        power = (power + z.dtype.type(factor)) * z
    value: Array = np.maximum(x, 0) - z * np.exp2(-1 - power)
    return value


def _elementwise(function: Callable[[Any], Any], kind: type[Any]) -> Callable[[Any], Array]:
    def apply_to(x: Any) -> Array:
        return np.asarray(function(np.asarray(x, np.float64)), np.float64).astype(kind)

    return apply_to


def _sigmoid(x: Array) -> Array:
    value: Array = 1 / (1 + np.exp(-x))
    return value


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "erf": _elementwise(_exact_erf, np.float32),
    "sigmoid": _sigmoid,
    "gate": lambda x, y: np.maximum(x, x.dtype.type(FAR)) * _sigmoid(y),
    "gelu": _gelu,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "where": np.where,
}
_DOUBLE: Mapping[str, Callable[..., Any]] = {
    "erf": _elementwise(_exact_erf, np.float64),
    "gelu": lambda x: np.maximum(x, FAR) * (_elementwise(_exact_erfc, np.float64)(x * -math.sqrt(0.5)) / 2),
}
