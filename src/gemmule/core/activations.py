"""Functions of traced values, for epilogues."""

from __future__ import annotations

import math
from typing import Any

from .errors import ArgumentError
from .tracing import Traced, operation

#: 2 * sqrt(2 / pi): tanh(u) = 2 * sigmoid(2 * u) - 1 turns GELU's usual form into one sigmoid.
_TWICE_ROOT = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _check_traced(name: str, *values: Any) -> None:
    if not any(isinstance(value, Traced) for value in values):
        kinds = " and ".join(type(value).__name__ for value in values)
        raise ArgumentError(
            f"gemmule.epilogue.{name} takes values inside of an epilogue, not {kinds}: gemmule.gemm(a, b, "
            f"epilogue=lambda acc: gemmule.epilogue.{name}(...)); on arrays use their own library"
        )


def _function(op: str, *values: Any) -> Traced:
    _check_traced(op, *values)
    return operation(op, *values)


def exp(x: Any) -> Traced:
    """Return e to the power of a traced value."""
    return _function("exp", x)


def log(x: Any) -> Traced:
    """Return the natural logarithm of a traced value."""
    return _function("log", x)


def sqrt(x: Any) -> Traced:
    """Return the square root of a traced value."""
    return _function("sqrt", x)


def tanh(x: Any) -> Traced:
    """Return the hyperbolic tangent of a traced value."""
    return _function("tanh", x)


def erf(x: Any) -> Traced:
    """Return the error function of a traced value."""
    return _function("erf", x)


def sigmoid(x: Any) -> Traced:
    """Return ``1 / (1 + exp(-x))`` of a traced value."""
    return _function("sigmoid", x)


def maximum(x: Any, y: Any) -> Traced:
    """Return the greater of two traced values or numbers; NaN if one is."""
    return _function("maximum", x, y)


def minimum(x: Any, y: Any) -> Traced:
    """Return the lesser of two traced values or numbers; NaN if one is."""
    return _function("minimum", x, y)


def where(condition: Any, x: Any, y: Any) -> Traced:
    """Return `x` where a comparison of traced values holds, else `y`."""
    return _function("where", condition, x, y)


def relu(x: Any) -> Traced:
    """Return ``max(x, 0)`` of a traced value; NaN stays."""
    _check_traced("relu", x)
    return operation("maximum", x, 0)


def silu(x: Any) -> Traced:
    """Return ``x * sigmoid(x)`` of a traced value."""
    _check_traced("silu", x)
    return operation("gate", x, x)


def gelu(x: Any, approximate: str = "none") -> Traced:
    """Return the Gaussian error linear unit of a traced value.

    Parameters
    ----------
    x : Traced
        The value.
    approximate : {'none', 'tanh'}, optional
        ``'none'``: x times the normal distribution's cumulative function, ``x * (1 + erf(x / sqrt(2))) / 2``;
        ``'tanh'``: ``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``.

    Raises
    ------
    ArgumentError
        If `x` is no traced value, or `approximate` is neither name.
    """
    _check_traced("gelu", x)
    if approximate == "none":
        return operation("gelu", x)
    if approximate == "tanh":
        square = operation("mul", x, x)
        factor = operation("add", operation("mul", square, _TWICE_ROOT * _CUBIC), _TWICE_ROOT)
        return operation("gate", x, operation("mul", x, factor))
    raise ArgumentError(f"approximate must be 'none' or 'tanh'; got {approximate!r}")


def gelu_tanh(x: Any) -> Traced:
    """Return ``gelu(x, approximate='tanh')``."""
    return gelu(x, approximate="tanh")


#: Functions that `gemm` accepts by name.
NAMED = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
