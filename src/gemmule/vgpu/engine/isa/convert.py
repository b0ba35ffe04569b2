"""Conversions: cvt between integers and floats of all widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.numeric.directed import directed
from gemmule.vgpu.numeric.exact import two_sum
from gemmule.vgpu.numeric.formats import round_to
from gemmule.vgpu.numeric.narrow import from_float64, to_float64
from gemmule.vgpu.types import NUMPY, Array, size_of

from ..definition import Build, Step, call, defines
from .floating import canonical, clipped, flushed

_FLOAT_MODES = ("rn", "rz", "rm", "rp", "rna")
_INTEGER_MODES = ("rni", "rzi", "rmi", "rpi")
_TO_INTEGER: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
_PACKED = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_FLOATS = ("f16", "bf16", "f32", "f64")


@defines("cvt")
def _cvt(build: Build) -> Step:
    """Convert; the first type is the destination's."""
    mode = build.take(*_FLOAT_MODES, *_INTEGER_MODES, default="")
    flush, saturate = build.flag("ftz"), build.flag("sat")
    finite, relu = build.flag("satfinite"), build.flag("relu")
    target, source = build.type(), build.type()
    if flush and "f32" not in (target, source):
        raise build.error(".ftz is for conversions from or to .f32")
    if (flush or saturate) and (target in _PACKED or target == "tf32"):
        raise build.error(f".ftz and .sat are not modelled for conversions to .{target}")
    if (finite or relu) and target not in (*_PACKED, "tf32", "f16", "bf16"):
        raise build.error(f".satfinite and .relu are not modelled for conversions to .{target}")
    if target in _PACKED:
        return _packed(build, target, source, mode, saturate=finite, relu=relu)
    build.done(2)
    if target == "tf32":
        return _tf32(build, mode, finite, relu)
    read = build.wide_source(build.operands[1], source)
    out = build.wide_dest(build.operands[0], target)
    if target in _INTEGERS and source in _INTEGERS:
        return call(_between_integers(source, target, saturate), [read], out)
    if target in _INTEGERS and source in _FLOATS:
        if mode not in _INTEGER_MODES:
            raise build.error("a conversion to an integer needs .rni, .rzi, .rmi or .rpi")
        return call(_float_to_integer(source, target, mode, flush), [read], out)
    if target in _FLOATS and source in (*_FLOATS, *_INTEGERS):
        return call(_to_float(build, source, target, mode, flush, saturate, finite, relu), [read], out)
    raise build.error(f"a conversion of .{source} to .{target} is not modelled")


def _low_part(value: Any, kind: str) -> Array:
    """Return the low bits of a register that may be wider than its type."""
    return np.asarray(value).astype(NUMPY[kind], casting="unsafe")


def _between_integers(source: str, target: str, saturate: bool) -> Callable[..., None]:
    limits = np.iinfo(NUMPY[target])

    def convert(a: Any, out: Array) -> None:
        value = np.asarray(a)
        if value.dtype != NUMPY[source]:
            value = _low_part(value, source)
        if saturate:
            inside = np.iinfo(value.dtype)
            value = np.clip(value, max(limits.min, inside.min), min(limits.max, inside.max))
        if NUMPY[target].itemsize < out.dtype.itemsize:
            value = value.astype(NUMPY[target])
        np.copyto(out, value, casting="unsafe")

    return convert


def _as_float(values: Any, kind: str) -> Array:
    """Return floats of any type as NumPy types: bf16 as float32."""
    value: Array = np.asarray(values)
    if kind == "bf16":
        wide: Array = value.astype(np.uint16).astype(np.uint32) << np.uint32(16)
        value = wide.view(np.float32)
    elif kind == "f16" and value.dtype != np.float16:
        value = value.astype(np.uint16).view(np.float16)
    return value


def _float_to_integer(source: str, target: str, mode: str, flush: bool) -> Callable[..., None]:
    limits = np.iinfo(NUMPY[target])
    rounded = _TO_INTEGER[mode]
    # The largest float64 below the limit, where the limit itself is none.
    top = float(limits.max) if limits.max < 2**53 else np.nextafter(float(limits.max), 0)

    def convert(a: Any, out: Array) -> None:
        value = _as_float(a, source).astype(np.float64)
        if flush:
            value = flushed(value, "f32")
        whole = rounded(value)
        kept = np.clip(np.where(np.isnan(whole), 0.0, whole), float(limits.min), top).astype(NUMPY[target])
        kept = np.where(whole > top, limits.max, kept)
        # Not a number becomes 0; from and in 64 bits the hardware sets the highest bit instead.
        if source == "f64" or size_of(target) == 8:
            highest = np.array(1 << 8 * size_of(target) - 1, f"u{size_of(target)}").view(NUMPY[target])
            kept = np.where(np.isnan(whole), highest, kept)
        np.copyto(out, kept.astype(NUMPY[target]), casting="unsafe")

    return convert


def _to_float(
    build: Build, source: str, target: str, mode: str, flush: bool, saturate: bool, finite: bool, relu: bool
) -> Callable[..., None]:
    to_whole = mode in _INTEGER_MODES

    def exact(value: Array) -> tuple[Array, Array | float]:
        """Return the source as float64 and what that loses: integers of 64 bits do not fit."""
        if value.dtype.kind in "iu" and value.dtype.itemsize == 8:
            bits32 = value.dtype.type(32)
            upper = (value >> bits32).astype(np.float64) * 2.0**32
            return two_sum(upper, (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64))
        return value.astype(np.float64), 0.0

    def convert(a: Any, out: Array) -> None:
        if source in _INTEGERS:
            value = _low_part(a, source)
        else:
            value = _as_float(a, source)
            if flush and source == "f32":
                value = flushed(value)
        if to_whole:
            value = _TO_INTEGER[mode](value)
        high, low = exact(value)
        if target == "f64":
            result = high
            if mode in ("rz", "rm", "rp"):
                result = directed(high, np.asarray(low), mode)
        else:
            result = round_to(target, high, low, mode if mode in _FLOAT_MODES else "rn", saturate=finite)
        if flush and target == "f32":
            result = flushed(result, "f32")
        if saturate:
            result = clipped(result)
        if relu:
            result = np.where(result < 0, 0.0, result)
        if target in ("f16", "bf16"):
            np.copyto(out.view(f"u{out.dtype.itemsize}"), from_float64(target, result), casting="unsafe")
        else:
            out[...] = result
            canonical(out)

    def widen(a: Any, out: Array) -> None:
        out[...] = _as_float(a, source)
        canonical(out)

    def narrow_to_half(a: Any, out: Array) -> None:
        out[...] = a
        bits = out.view(np.uint16)
        nan = np.isnan(out)
        if nan.any():
            bits[nan] = 0x7FFF

    exactly_held = source in _FLOATS and NUMPY[target].itemsize > NUMPY[source].itemsize and target in ("f32", "f64")
    changes = saturate or finite or relu or flush
    if exactly_held and not (changes or to_whole):
        return widen
    if source in ("f32", "f64") and target == "f16" and mode == "rn" and not changes:
        # NumPy rounds to nearest, ties to even, and once.
        return narrow_to_half
    if source in _FLOATS and target == source and mode == "" and not changes:
        raise build.error("this conversion changes nothing and is not modelled")
    return convert


def _tf32(build: Build, mode: str, finite: bool, relu: bool) -> Step:
    read = build.source(build.operands[1], "f32")
    out = build.dest(build.operands[0], "b32")

    def convert(a: Any, target: Array) -> None:
        result = round_to("tf32", np.asarray(a, np.float64), 0.0, mode or "rn", saturate=finite)
        if relu:
            result = np.where(result < 0, 0.0, result)
        value = result.astype(np.float32)
        target[...] = np.where(np.isnan(value), np.uint32(0x7FFFFFFF), value.view(np.uint32))

    return call(convert, [read], out)


def _packed(build: Build, target: str, source: str, mode: str, *, saturate: bool, relu: bool) -> Step:
    """Convert two values into one register: the first source becomes the upper half."""
    element = _PACKED[target]
    bits = np.dtype(f"u{1 if element.startswith('e') else 2}")
    whole = np.dtype(f"u{2 * bits.itemsize}")
    # There is no infinity in e4m3.
    limit = saturate or element == "e4m3"
    if source in _PACKED:
        build.done(2)
        inner = _PACKED[source]
        part = np.dtype(f"u{1 if inner.startswith('e') else 2}")
        read, out = (
            build.source(build.operands[1], f"b{16 * part.itemsize}"),
            build.dest(build.operands[0], f"b{8 * whole.itemsize}"),
        )

        def between(a: Any, result: Array) -> None:
            halves = to_float64(inner, np.ascontiguousarray(a)[..., None].view(part))
            rounded = round_to(element, halves, 0.0, mode or "rn", saturate=limit)
            result[...] = _joined(element, rounded, relu, whole)

        return call(between, [read], out)
    build.done(3)
    high, low = build.source(build.operands[1], source), build.source(build.operands[2], source)
    out = build.dest(build.operands[0], f"b{8 * whole.itemsize}")

    def pack(a: Any, b: Any, result: Array) -> None:
        pair = np.empty((*result.shape, 2), np.float64)
        pair[..., 0], pair[..., 1] = _as_float(b, source), _as_float(a, source)
        rounded = round_to(element, pair, 0.0, mode or "rn", saturate=limit)
        result[...] = _joined(element, rounded, relu, whole)

    return call(pack, [high, low], out)


def _joined(element: str, pair: Array, relu: bool, whole: np.dtype[Any]) -> Array:
    if relu:
        pair = np.where(pair < 0, 0.0, pair)
    joined: Array = np.ascontiguousarray(from_float64(element, pair)).view(whole)[..., 0]
    return joined
