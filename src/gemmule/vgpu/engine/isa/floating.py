"""Floating-point arithmetic: IEEE 754, subnormals preserved unless ``.ftz``, every result rounded once.

A float32 result that is no number is the hardware's 0x7FFFFFFF. The approximate functions (``.approx``) are computed in
float64 and rounded: within their documented error, not bit for bit what the hardware gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.numeric.directed import directed, directed_product, zero_sign
from gemmule.vgpu.numeric.exact import two_sum
from gemmule.vgpu.numeric.fma import fma32, fma64, fma_narrow
from gemmule.vgpu.numeric.formats import round_to
from gemmule.vgpu.numeric.narrow import from_float64, to_float64
from gemmule.vgpu.types import FLOATS, Array

from ..definition import Build, Function, Step, defines, elementwise

#: Types that are computed in float64.
NARROW = ("f16", "f16x2", "bf16", "bf16x2")
#: Two float32 in a register of 64 bits, which compute capability 10.0 and newer computes at once.
PAIR = "f32x2"
_MODES = ("rn", "rz", "rm", "rp")
_NAN32 = np.uint32(0x7FFFFFFF).view(np.float32)
#: Types of values held in a wider type.
_SMALLEST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}


def canonical(out: Array) -> None:
    """Make every float32 that is no number the one that the hardware gives."""
    if out.dtype == np.float32 and np.isnan(np.max(out)):
        out[np.isnan(out)] = _NAN32


def flushed(value: Any, kind: str = "") -> Any:
    """Return floats, subnormals of their type, or of the narrow type `kind`, as zeros of the same sign."""
    tiny = _SMALLEST_NORMAL.get(kind.removesuffix("x2")) or np.finfo(np.asarray(value).dtype).smallest_normal
    return np.where(np.abs(value) < tiny, np.copysign(np.asarray(value).dtype.type(0), value), value)


def clipped(value: Array) -> Array:
    """Return floats saturated by ``.sat``: from 0 to 1; NaN becomes 0, and -0 becomes +0."""
    found: Array = np.where(np.isnan(value), 0, np.clip(value, 0, 1)) + 0.0
    return found


def finishing(function: Function, flush: bool, saturate: bool) -> Function:
    """Return the function with inputs and results flushed and clipped as the modifiers say."""

    def apply(*arrays: Any) -> None:
        *sources, out = arrays
        if flush:
            sources = [flushed(source) for source in sources]
        function(*sources, out)
        if flush:
            out[...] = flushed(out)
        if saturate:
            out[...] = clipped(out)
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
        # A sum of finite numbers is less than the infinity that it was rounded to.
        error = np.where(np.isinf(total), np.where(np.isfinite(x) & np.isfinite(y), -total, 0), error)
        out[...] = zero_sign(directed(total, error, mode), total, mode, x, y)

    return directed32 if kind == "f32" else directed64


def _product(mode: str, kind: str) -> Function:
    if mode == "rn":
        return np.multiply

    def directed32(a: Any, b: Any, out: Array) -> None:
        out[...] = round_to("f32", np.multiply(a, b, dtype=np.float64), 0.0, mode)

    def directed64(a: Any, b: Any, out: Array) -> None:
        out[...] = directed_product(np.asarray(a), np.asarray(b), mode)

    return directed32 if kind == "f32" else directed64


def narrow(operation: Callable[..., Array], kind: str, flush: bool = False, saturate: bool = False) -> Function:
    """Return an operation on f16 or bf16 values, or on pairs of them, from one on float64."""
    element = kind.removesuffix("x2")

    def compute(*bits: Array) -> Array:
        values = [to_float64(element, half) for half in bits]
        result = operation(*(flushed(value, element) for value in values) if flush else values)
        result = flushed(result, element) if flush else result
        return clipped(result) if saturate else result

    def apply(*arrays: Any) -> None:
        *sources, out = arrays
        if kind.endswith("x2"):
            result = compute(*(np.asarray(source, np.uint32)[..., None].view(np.uint16) for source in sources))
            result = np.ascontiguousarray(np.broadcast_to(from_float64(element, result), (*out.shape, 2)))
            out.view(np.uint32)[...] = result.view(np.uint32)[..., 0]
            return
        result = compute(*(np.asarray(source).view(np.uint16) for source in sources))
        out.view(np.uint16)[...] = from_float64(element, result)

    return apply


def paired(function: Function) -> Function:
    """Return an operation on pairs of float32, in registers of 64 bits, from one on float32."""

    def apply(*arrays: Any) -> None:
        *sources, out = arrays
        wide = (np.broadcast_to(np.asarray(source).view(np.uint64), out.shape) for source in sources)
        result = np.empty(2 * out.size, np.float32)
        function(*(np.ascontiguousarray(source).reshape(-1).view(np.float32) for source in wide), result)
        out.view(np.uint64)[...] = result.view(np.uint64).reshape(out.shape)

    return apply


def _rounded(kind: str, operation: Callable[..., tuple[Array, Array | float]]) -> Callable[..., Array]:
    """Return a narrow operation that rounds an exact pair."""
    element = kind.removesuffix("x2")

    def apply(*sources: Array) -> Array:
        high, low = operation(*sources)
        return round_to(element, high, low, "rn")

    return apply


def _widened(function: Function, element: str, count: int) -> Function:
    """Return an operation on float32 whose first operands are of a narrower type, as sm_100 and newer have."""

    def apply(*arrays: Any) -> None:
        narrower = [to_float64(element, np.asarray(one).view(np.uint16)).astype(np.float32) for one in arrays[:count]]
        function(*narrower, *arrays[count:])

    return apply


def check_modifiers(build: Build, kind: str, mode: str, flush: bool, saturate: bool) -> None:
    """Refuse modifiers that PTX does not have for a type."""
    if kind in NARROW and mode != "rn":
        raise build.error(f".{mode} is not modelled for .{kind}, which is rounded to nearest")
    if flush and kind not in ("f32", "f32x2", "f16", "f16x2"):
        raise build.error(f".ftz is not modelled for .{kind}")
    if saturate and kind not in ("f32", "f16", "f16x2"):
        raise build.error(f".sat is not modelled for .{kind}")


def _of_floats(build: Build, kind: str, function: Function, sources: int) -> Step:
    """Return the step of an operation on float32 or float64, or on pairs of float32."""
    return elementwise(build, paired(function) if kind == PAIR else function, kind, *[kind] * sources)


@defines("add.float", "sub.float")
def _add(build: Build) -> Step:
    """Add or subtract."""
    mode = build.take(*_MODES, default="rn")
    flush, saturate = build.flag("ftz"), build.flag("sat")
    kind = build.type(*FLOATS, PAIR, *NARROW)
    subtract = build.instruction.name == "sub"
    check_modifiers(build, kind, mode, flush, saturate)
    if kind in NARROW:
        sign = -1.0 if subtract else 1.0
        function = narrow(_rounded(kind, lambda a, b: two_sum(a, sign * b)), kind, flush, saturate)
        return elementwise(build, function, kind, kind, kind)
    function = finishing(_sum(mode, kind.removesuffix("x2"), subtract), flush, saturate)
    if kind == "f32" and (element := build.take("f16", "bf16", default="")):
        return elementwise(build, _widened(function, element, 1), kind, element, kind)
    return _of_floats(build, kind, function, 2)


@defines("mul.float")
def _mul(build: Build) -> Step:
    """Multiply."""
    mode = build.take(*_MODES, default="rn")
    flush, saturate = build.flag("ftz"), build.flag("sat")
    kind = build.type(*FLOATS, PAIR, *NARROW)
    check_modifiers(build, kind, mode, flush, saturate)
    if kind in NARROW:
        function = narrow(_rounded(kind, lambda a, b: (a * b, 0.0)), kind, flush, saturate)
        return elementwise(build, function, kind, kind, kind)
    return _of_floats(build, kind, finishing(_product(mode, kind.removesuffix("x2")), flush, saturate), 2)


@defines("fma", "mad.float")
def _fma(build: Build) -> Step:
    """Multiply and add, rounded once."""
    mode = build.take(*_MODES, default="rn")
    flush, saturate, relu = build.flag("ftz"), build.flag("sat"), build.flag("relu")
    kind = build.type(*FLOATS, PAIR, *NARROW)
    kinds = (kind, kind, kind, kind)
    check_modifiers(build, kind, mode, flush, saturate)
    if relu and kind not in NARROW:
        raise build.error(f".relu is not modelled for .{kind}")
    if kind in NARROW:
        element = kind.removesuffix("x2")

        def multiply_add(a: Array, b: Array, c: Array) -> Array:
            result = fma_narrow(element, a, b, c)
            return np.where(np.isnan(result), result, np.maximum(result, 0)) if relu else result

        return elementwise(build, narrow(multiply_add, kind, flush, saturate), *kinds)
    if mode != "rn":
        if kind == "f64":
            raise build.error(f"fma.{mode}.f64 is not modelled by the virtual GPU; only .rn is")

        def directed(a: Any, b: Any, c: Any, out: Array) -> None:
            product = np.multiply(a, b, dtype=np.float64)
            total, error = two_sum(product, np.asarray(c, np.float64))
            rounded = round_to("f32", total, np.where(np.isfinite(total), error, 0), mode)
            out[...] = zero_sign(rounded, total, mode, product, np.asarray(c))

        return _of_floats(build, kind, finishing(directed, flush, saturate), 3)
    function = fma64 if kind == "f64" else fma32
    function = finishing(function, flush, saturate) if flush or saturate else function
    if kind == "f32" and (element := build.take("f16", "bf16", default="")):
        return elementwise(build, _widened(function, element, 2), kind, element, element, kind)
    return _of_floats(build, kind, function, 3)


@defines("div.float")
def _div(build: Build) -> Step:
    """Divide; ``.approx`` and ``.full`` are given the correctly rounded quotient."""
    build.take("rn", "approx", "full")
    flush = build.flag("ftz")
    kind = build.type(*FLOATS)
    check_modifiers(build, kind, "rn", flush, saturate=False)
    return elementwise(build, finishing(np.divide, flush, False), kind, kind, kind)


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
    if kind in NARROW:
        return elementwise(build, narrow(_rounded(kind, lambda a: (function(a), 0.0)), kind, flush), kind, kind)
    if name == "rcp" and kind == "f32":
        # One division in float32 is rounded once.
        return elementwise(build, finishing(lambda a, out: np.divide(np.float32(1), a, out), flush, False), kind, kind)
    if name == "sqrt" and kind == "f32":
        return elementwise(build, finishing(np.sqrt, flush, False), kind, kind)
    return elementwise(build, finishing(_by_float64(function), flush, False), kind, kind)
