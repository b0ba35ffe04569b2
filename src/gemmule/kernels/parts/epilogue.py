"""Epilogues on the device: the operations of an expression on values in registers."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import cutlass
from cutlass import Float16, Float32, Float64, cute

from gemmule.core.epilogue import ABSMAX, ACC, FAR, MATRIX, UP, C, Expression
from gemmule.core.normal_distribution import HALF, SHORT, SINGLE, Tail

_LOG2_E = math.log2(math.e)
_MOST_POWER, _LEAST = 60, -100


def operations(kind: Any, out: Any) -> Mapping[str, Callable[..., Any]]:
    """Return the operations on Float32 or Float64, by the names of core.epilogue.

    In float32, sigmoid and gelu use the hardware's approximate power of two and reciprocal; the others are those of the
    CUDA math library.

    Parameters
    ----------
    kind : type
        Type of the arithmetic.
    out : type
        Type of the result.
    """
    if kind is Float64:
        return _FLOAT64
    if out.width == Float32.width:
        return _FLOAT32
    return {**_FLOAT32, "gelu": _gelu32(HALF if out is Float16 else SHORT)}


class ElementEpilogue:
    """A fused epilogue of single elements.

    Parameters
    ----------
    types : dict
        ``epilogue``, the expression's text, and ``inputs``, types of its matrices.
    kind : type
        Float32 or Float64, the type of the arithmetic.
    """

    def __init__(self, types: dict[str, str], kind: Any) -> None:
        self.expression, self.kind = Expression.parse(types["epilogue"]), kind
        self.matrices = len(types["inputs"].split())
        self.has_absmax = ABSMAX in types

    def fake_numbers(self) -> tuple[Any, ...]:
        """Return fake values of the numbers among the launch parameters."""
        return (self.kind(1),) * self.expression.numbers

    def value(self, acc: Any, up: Any, mC: Any, extras: Any, at: tuple[Any, ...], out: Any) -> Any:
        """Return the value of an element of type `out`.

        Parameters
        ----------
        acc, up : Float32 or Float64
            Its accumulator, and that of the second B, where there is one.
        mC : Tensor
            C.
        extras : tuple
            Matrices, then numbers.
        at : tuple
            Its coordinates.
        out : type
            Type of the result.
        """

        def leaf(name: str) -> Any:
            if name in (ACC, UP):
                return acc if name == ACC else up
            if name == C:
                return mC[at].to(self.kind)
            place = int(name[1:])
            return extras[place][at].to(self.kind) if name[0] == MATRIX else extras[self.matrices + place]

        return self.expression.evaluate(leaf, self.kind, operations(self.kind, out))


def _exp2(x: Any) -> Any:
    return _approximate("ex2.approx.ftz.f32", x)


def pair_operations(out: Any) -> Mapping[str, Callable[..., Any]]:
    """Return the operations on pairs of Float32, which share slow instructions.

    Parameters
    ----------
    out : type
        Type of the result.
    """

    def both(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *pairs: tuple(function(*values) for values in zip(*pairs, strict=True))

    return {name: both(function) for name, function in operations(Float32, out).items()} | {"gate": _gates}


def _gates(x: Any, y: Any) -> Any:
    """Return x times the sigmoid of y of two elements, with one reciprocal of a product."""
    # Limited, so that their product is finite; NaN is dropped here, and restored by x.
    first, second = (Float32(1) + _exp2(_two("min.f32", one * Float32(-_LOG2_E), Float32(_MOST_POWER))) for one in y)
    inverse = _approximate("rcp.approx.ftz.f32", first * second)
    # The limit is next to nothing, unless x is far from 0.
    low, high = (_two("max.NaN.f32", one, Float32(_LEAST)) for one in x)
    return low * (second * inverse), high * (first * inverse)


def _approximate(instruction: str, x: Any) -> Any:
    return cute.arch.inline_ptx(f"{instruction} {{$w0}}, {{$r0}};", write_only_types=[Float32], read_only_args=[x])


def _sigmoid32(x: Any) -> Any:
    return _approximate("rcp.approx.ftz.f32", Float32(1) + _exp2(x * Float32(-_LOG2_E)))


def _gelu32(tail: Tail) -> Callable[..., Any]:
    def gelu(x: Any) -> Any:
        # One instruction, which drops NaN; the other term keeps it.
        z = _two("min.f32", cute.math.abs(x), Float32(tail.edge))
        power = Float32(tail.factors[-1])
        for factor in reversed(tail.factors[:-1]):
            power = power * z + Float32(factor)
        # x times the function of x > 0 is x less that of -x.
        return _two("max.NaN.f32", x, Float32(0)) - z * _exp2(Float32(-1) - power * z)

    return gelu


def _sigmoid64(x: Any) -> Any:
    return Float64(1) / (Float64(1) + cute.math.exp(-x))


def _gelu64(x: Any) -> Any:
    return _extreme64(cute.math.max)(x, Float64(FAR)) * Float64(0.5) * cute.math.erfc(x * Float64(-math.sqrt(0.5)))


def _two(instruction: str, x: Any, y: Any) -> Any:
    return cute.arch.inline_ptx(
        f"{instruction} {{$w0}}, {{$r0}}, {{$r1}};", write_only_types=[Float32], read_only_args=[x, y]
    )


def _extreme64(which: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(x: Any, y: Any) -> Any:
        # The instruction drops NaN.
        return Float64(cutlass.select_(x != x, x, cutlass.select_(y != y, y, which(x, y))))

    return extreme


_BOTH: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "abs": cute.math.abs,
    "exp": cute.math.exp,
    "log": cute.math.log,
    "sqrt": cute.math.sqrt,
    "tanh": cute.math.tanh,
    "erf": cute.math.erf,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "where": lambda condition, x, y: type(x)(cutlass.select_(condition, x, y)),
}
_FLOAT32 = _BOTH | {
    "sigmoid": _sigmoid32,
    "gate": lambda x, y: _two("max.NaN.f32", x, Float32(FAR)) * _sigmoid32(y),
    "gelu": _gelu32(SINGLE),
    "maximum": functools.partial(_two, "max.NaN.f32"),
    "minimum": functools.partial(_two, "min.NaN.f32"),
}
_FLOAT64 = _BOTH | {
    "sigmoid": _sigmoid64,
    "gate": lambda x, y: _extreme64(cute.math.max)(x, Float64(FAR)) * _sigmoid64(y),
    "gelu": _gelu64,
    "maximum": _extreme64(cute.math.max),
    "minimum": _extreme64(cute.math.min),
}
