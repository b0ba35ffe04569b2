"""Floating-point arithmetic: IEEE 754, subnormals kept unless ``.ftz``, every result rounded once.

A float32 result that is no number is the hardware's 0x7FFFFFFF. The approximate functions (``.approx``) are computed in
float64 and rounded: within their documented error, not bit for bit what the hardware gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.numeric.directed import directed, zero_sign
from gemmule.vgpu.numeric.exact import two_product, two_sum
from gemmule.vgpu.numeric.fma import fma32, fma64, fma_narrow
from gemmule.vgpu.numeric.formats import round_to
from gemmule.vgpu.numeric.narrow import from_float64, to_float64

from .define import Build, Step, defines
from .elementwise import Function, elementwise
from .types import FLOATS, NUMPY, Array

_NARROW = ("f16", "f16x2", "bf16", "bf16x2")
_MODES = ("rn", "rz", "rm", "rp")
_NAN32 = np.uint32(0x7FFFFFFF).view(np.float32)
_TINY = np.float32(1.1754943508222875e-38)


def canonical(out: Array) -> None:
    """Make every float32 that is no number the one that the hardware gives."""
    if out.dtype == np.float32 and np.isnan(np.max(out)):
        out[np.isnan(out)] = _NAN32


def _flushed(value: Any) -> Any:
    """Return float32 values, subnormals as zeros of the same sign."""
    return np.where(np.abs(value) < _TINY, np.copysign(np.float32(0), value), value)


def _finishing(function: Function, flush: bool, saturate: bool) -> Function:
    """Return the function with inputs and results flushed and clipped as the modifiers say."""

    def apply(*arrays: Any) -> None:
        *sources, out = arrays
        if flush:
            sources = [_flushed(source) for source in sources]
        function(*sources, out)
        if flush:
            out[...] = _flushed(out)
        if saturate:
            # Not a number becomes 0, and -0 becomes +0.
            out[...] = np.where(np.isnan(out), 0, np.clip(out, 0, 1)) + 0.0
        else:
            canonical(out)

    return apply


def _sum(mode: str, kind: str, subtract: bool) -> Function:
    operation: Any = np.subtract if subtract else np.add
    if mode == "rn":
        return operation  # type: ignore[no-any-return]

    def directed32(a: Any, b: Any, out: Array) -> None:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        y = -y if subtract else y
        total, error = two_sum(x, y)
        rounded = round_to("f32", total, np.where(np.isfinite(total), error, 0), mode)
        out[...] = zero_sign(rounded, total, mode, x, y)

    def directed64(a: Any, b: Any, out: Array) -> None:
        x, y = np.asarray(a), -np.asarray(b) if subtract else np.asarray(b)
        total, error = two_sum(x, y)
        out[...] = zero_sign(directed(total, error, mode), total, mode, x, y)

    return directed32 if kind == "f32" else directed64


def _product(mode: str, kind: str) -> Function:
    if mode == "rn":
        return np.multiply

    def directed32(a: Any, b: Any, out: Array) -> None:
        out[...] = round_to("f32", np.multiply(a, b, dtype=np.float64), 0.0, mode)

    def directed64(a: Any, b: Any, out: Array) -> None:
        product, error = two_product(np.asarray(a), np.asarray(b))
        out[...] = directed(product, np.where(np.isfinite(error), error, 0), mode)

    return directed32 if kind == "f32" else directed64


def _narrow(operation: Callable[..., Array], kind: str) -> Function:
    """Return an operation on f16 or bf16 values, or on pairs of them, from one on float64."""
    element = kind.removesuffix("x2")

    def apply(*arrays: Any) -> None:
        *sources, out = arrays
        if kind.endswith("x2"):
            halves = [np.asarray(source, np.uint32)[..., None].view(np.uint16) for source in sources]
            result = operation(*(to_float64(element, half) for half in halves))
            result = np.ascontiguousarray(np.broadcast_to(from_float64(element, result), (*out.shape, 2)))
            out.view(np.uint32)[...] = result.view(np.uint32)[..., 0]
            return
        result = operation(*(to_float64(element, np.asarray(source).view(np.uint16)) for source in sources))
        out.view(np.uint16)[...] = from_float64(element, result)

    return apply


def _rounded(kind: str, operation: Callable[..., tuple[Array, Array | float]]) -> Callable[..., Array]:
    """Return a narrow operation that rounds an exact pair."""
    element = kind.removesuffix("x2")

    def apply(*sources: Array) -> Array:
        high, low = operation(*sources)
        return round_to(element, high, low, "rn")

    return apply


@defines("add.float", "sub.float")
def _add(build: Build) -> Step:
    """Add or subtract."""
    mode = build.take(*_MODES, default="rn")
    flush, saturate = build.flag("ftz"), build.flag("sat")
    kind = build.type(*FLOATS, *_NARROW)
    subtract = build.instruction.name == "sub"
    if kind in _NARROW:
        sign = -1.0 if subtract else 1.0
        function = _narrow(_rounded(kind, lambda a, b: two_sum(a, sign * b)), kind)
        return elementwise(build, _finishing(function, False, saturate), kind, kind, kind)
    return elementwise(build, _finishing(_sum(mode, kind, subtract), flush, saturate), kind, kind, kind)


@defines("mul.float")
def _mul(build: Build) -> Step:
    """Multiply."""
    mode = build.take(*_MODES, default="rn")
    flush, saturate = build.flag("ftz"), build.flag("sat")
    kind = build.type(*FLOATS, *_NARROW)
    if kind in _NARROW:
        function = _narrow(_rounded(kind, lambda a, b: (a * b, 0.0)), kind)
        return elementwise(build, _finishing(function, False, saturate), kind, kind, kind)
    return elementwise(build, _finishing(_product(mode, kind), flush, saturate), kind, kind, kind)


@defines("fma", "mad.float")
def _fma(build: Build) -> Step:
    """Multiply and add, rounded once."""
    mode = build.take(*_MODES, default="rn")
    flush, saturate, relu = build.flag("ftz"), build.flag("sat"), build.flag("relu")
    kind = build.type(*FLOATS, *_NARROW)
    kinds = (kind, kind, kind, kind)
    if kind in _NARROW:
        element = kind.removesuffix("x2")

        def narrow(a: Array, b: Array, c: Array) -> Array:
            result = fma_narrow(element, a, b, c)
            return np.where(np.isnan(result), result, np.maximum(result, 0)) if relu else result

        return elementwise(build, _finishing(_narrow(narrow, kind), False, saturate), *kinds)
    if mode != "rn":
        if kind != "f32":
            raise build.error(f"fma.{mode}.f64 is not known to the virtual GPU; only .rn is")

        def directed(a: Any, b: Any, c: Any, out: Array) -> None:
            product = np.multiply(a, b, dtype=np.float64)
            total, error = two_sum(product, np.asarray(c, np.float64))
            rounded = round_to("f32", total, np.where(np.isfinite(total), error, 0), mode)
            out[...] = zero_sign(rounded, total, mode, product, np.asarray(c))

        return elementwise(build, _finishing(directed, flush, saturate), *kinds)
    function = fma32 if kind == "f32" else fma64
    if not (flush or saturate):
        return elementwise(build, function, *kinds)
    return elementwise(build, _finishing(function, flush, saturate), *kinds)


@defines("div.float")
def _div(build: Build) -> Step:
    """Divide; ``.approx`` and ``.full`` are given the correctly rounded quotient."""
    build.take("rn", "approx", "full")
    flush = build.flag("ftz")
    kind = build.type(*FLOATS)
    return elementwise(build, _finishing(np.divide, flush, False), kind, kind, kind)


def _by_float64(function: Callable[[Array], Array]) -> Function:
    def apply(a: Any, out: Array) -> None:
        with np.errstate(all="ignore"):
            out[...] = function(np.asarray(a, np.float64))

    return apply


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@defines(*_FUNCTIONS)
def _function(build: Build) -> Step:
    """Compute a function of one number."""
    name = build.instruction.name
    build.take("rn", "approx", default="approx" if name in ("ex2", "tanh") else None)
    flush = build.flag("ftz")
    kind = build.type(*FLOATS, "f16", "bf16")
    function = _FUNCTIONS[name]
    if kind in _NARROW:
        return elementwise(build, _narrow(_rounded(kind, lambda a: (function(a), 0.0)), kind), kind, kind)
    if name == "rcp" and kind == "f32":
        # One division in float32 is rounded once.
        return elementwise(build, _finishing(lambda a, out: np.divide(np.float32(1), a, out), flush, False), kind, kind)
    if name == "sqrt" and kind == "f32":
        return elementwise(build, _finishing(np.sqrt, flush, False), kind, kind)
    return elementwise(build, _finishing(_by_float64(function), flush, False), kind, kind)


def _sign_operation(operation: Callable[[Array, Array], Array]) -> Callable[[Build], Step]:
    """Return a definition that changes sign bits only."""

    def definition(build: Build) -> Step:
        flush = build.flag("ftz")
        kind = build.type(*FLOATS, *_NARROW)
        size = NUMPY[kind].itemsize
        sign = np.array(0x80008000 if kind.endswith("x2") else 1 << (8 * size - 1), f"u{size}")

        def apply(a: Any, out: Array) -> None:
            out.view(sign.dtype)[...] = operation(np.asarray(a).view(sign.dtype), sign)

        return elementwise(build, _finishing(apply, flush, False) if flush else apply, kind, kind)

    return definition


defines("abs.float")(_sign_operation(lambda bits, sign: bits & ~sign))
defines("neg.float")(_sign_operation(lambda bits, sign: bits ^ sign))


@defines("copysign")
def _copysign(build: Build) -> Step:
    """Give the second number the first one's sign."""
    kind = build.type(*FLOATS)
    return elementwise(build, lambda a, b, out: np.copysign(b, a, out), kind, kind, kind)


def _extreme(larger: bool, keep_nan: bool) -> Callable[[Array, Array], Array]:
    """Return the larger or the smaller of two; -0 is smaller than +0; a number wins over none unless asked."""

    def choose(a: Any, b: Any) -> Array:
        x, y = np.asarray(a), np.asarray(b)
        first = (x > y) if larger else (x < y)
        first |= (x == y) & (np.signbit(y) if larger else np.signbit(x))
        first |= np.isnan(y)
        result = np.where(first, x, y)
        if keep_nan:
            result = np.where(np.isnan(x) | np.isnan(y), x + y, result)
        return result

    return choose


@defines("min.float", "max.float")
def _extremes(build: Build) -> Step:
    """Give the smaller or the larger."""
    flush, keep_nan = build.flag("ftz"), build.flag("NaN")
    kind = build.type(*FLOATS, *_NARROW)
    choose = _extreme(build.instruction.name == "max", keep_nan)
    if kind in _NARROW:
        return elementwise(build, _narrow(choose, kind), kind, kind, kind)

    def apply(a: Array, b: Array, out: Array) -> None:
        out[...] = choose(a, b)

    return elementwise(build, _finishing(apply, flush, False), kind, kind, kind)
