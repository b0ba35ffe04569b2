"""Signs of floats, and the larger or smaller of two: abs, neg, copysign, min, max."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.numeric.narrow import from_float64, to_float64
from gemmule.vgpu.types import FLOATS, NUMPY, Array

from ..definition import Build, Step, defines, elementwise
from .floating import NARROW, check_modifiers, finishing, narrow


def _sign_operation(operation: Callable[[Array, Array], Array]) -> Callable[[Build], Step]:
    """Return a definition that changes sign bits only."""

    def definition(build: Build) -> Step:
        flush = build.flag("ftz")
        kind = build.type(*FLOATS, *NARROW)
        size = NUMPY[kind].itemsize
        sign = np.array(0x80008000 if kind.endswith("x2") else 1 << (8 * size - 1), f"u{size}")

        def apply(a: Any, out: Array) -> None:
            out.view(sign.dtype)[...] = operation(np.asarray(a).view(sign.dtype), sign)

        check_modifiers(build, kind, "rn", flush, saturate=False)
        if flush and kind in NARROW:
            element = kind.removesuffix("x2")

            def change(value: Array) -> Array:
                bits = np.ascontiguousarray(from_float64(element, value))
                return to_float64(element, operation(bits, np.array(1 << 15, np.uint16)))

            return elementwise(build, narrow(change, kind, flush), kind, kind)
        return elementwise(build, finishing(apply, flush, False) if flush else apply, kind, kind)

    return definition


defines("abs.float")(_sign_operation(lambda bits, sign: bits & ~sign))
defines("neg.float")(_sign_operation(lambda bits, sign: bits ^ sign))


@defines("copysign")
def _copysign(build: Build) -> Step:
    """Give the second number the first one's sign."""
    kind = build.type(*FLOATS)
    return elementwise(build, lambda a, b, out: np.copysign(b, a, out), kind, kind, kind)


def _extreme(larger: bool, keep_nan: bool) -> Callable[[Array, Array], Array]:
    """Return the larger or the smaller of two; -0 is smaller than +0; a number wins over NaN by default."""

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
    kind = build.type(*FLOATS, *NARROW)
    choose = _extreme(build.instruction.name == "max", keep_nan)
    check_modifiers(build, kind, "rn", flush, saturate=False)
    if kind in NARROW:
        return elementwise(build, narrow(choose, kind, flush), kind, kind, kind)

    def apply(a: Array, b: Array, out: Array) -> None:
        out[...] = choose(a, b)

    return elementwise(build, finishing(apply, flush, False), kind, kind, kind)
