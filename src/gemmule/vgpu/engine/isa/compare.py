"""Comparisons that give predicates: setp, set, testp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmule.vgpu.ptx.module import Pair
from gemmule.vgpu.types import NUMPY, Array

from ..definition import Build, Step, defines
from ..running_batch import Frame
from .floating import flushed

_ORDERED: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_COMPARISONS = (*_ORDERED, *_UNSIGNED_NAMES, *(f"{name}u" for name in _ORDERED), "num", "nan")
_TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "f32", "f64", "bf16")


def _comparison(name: str, floating: bool) -> Callable[..., Any]:
    """Return the ufunc, or a function called like one, that compares."""
    if name == "num":
        return lambda a, b, out: np.logical_and(a == a, b == b, out=out)
    if name == "nan":
        return lambda a, b, out: np.logical_or(a != a, b != b, out=out)
    if floating and name == "ne":
        # Ordered: false where one of them is not a number.
        return lambda a, b, out: np.logical_or(a < b, a > b, out=out)
    name = _UNSIGNED_NAMES.get(name, name)
    if name in _ORDERED:
        ufunc: Callable[..., Any] = _ORDERED[name]
        return ufunc
    ordered = name[:-1]
    if ordered == "ne":
        return np.not_equal
    inverse = _ORDERED[{"eq": "ne", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}[ordered]]
    if ordered == "eq":
        return lambda a, b, out: np.invert((a < b) | (a > b), out=out)

    def unordered(a: Any, b: Any, out: Array) -> None:
        np.invert(inverse(a, b), out=out)

    return unordered


def _reader(build: Build, name: str, kind: str, flush: bool) -> Callable[[Any], Any] | None:
    """Return the conversion that makes values comparable: bf16 to float32, ``.ftz`` to 0; None where they are."""
    if kind in ("b16", "b32", "b64") and name not in ("eq", "ne"):
        raise build.error("types of bits compare equal or not equal only")
    if flush and kind not in ("f16", "f32"):
        raise build.error(f".ftz is not modelled for .{kind}")
    if kind == "bf16":
        return lambda value: (np.asarray(value).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return flushed if flush else None


@defines("setp")
def _setp(build: Build) -> Step:
    """Compare; combine with a predicate where one is given; the second destination is the inverse."""
    name = build.take(*_COMPARISONS)
    combine = build.take(*_COMBINE, default="")
    flush = build.flag("ftz")
    kind = build.type(*_TYPES)
    build.done(4 if combine else 3)
    target, first, second, *rest = build.operands
    read = _reader(build, name, kind, flush)
    a, b = build.source(first, kind), build.source(second, kind)
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    condition = build.predicate(rest[0]) if rest else None
    slots = [build.dest(item, "pred") for item in targets]
    compare = _comparison(name, NUMPY[kind].kind == "f" or kind == "bf16")
    if len(slots) == 1 and condition is None and read is None:
        (out,) = slots

        def plain(frame: Frame) -> None:
            compare(frame[a], frame[b], out=frame[out])

        return plain

    def step(frame: Frame) -> None:
        x, y = frame[a], frame[b]
        if read is not None:
            x, y = read(x), read(y)
        result = np.empty(frame.lanes.count, np.bool_)
        compare(x, y, out=result)
        inverse = ~result
        if condition is not None:
            slot, negated = condition
            other = ~frame[slot] if negated else frame[slot]
            result, inverse = _COMBINE[combine](result, other), _COMBINE[combine](inverse, other)
        frame[slots[0]][...] = result
        if len(slots) == 2:
            frame[slots[1]][...] = inverse

    return step


@defines("set")
def _set(build: Build) -> Step:
    """Compare; true is all ones, or 1.0 for a float."""
    name = build.take(*_COMPARISONS)
    flush = build.flag("ftz")
    target_kind = build.type("u32", "s32", "f32")
    kind = build.type(*_TYPES)
    build.done(3)
    read = _reader(build, name, kind, flush)
    a, b = build.source(build.operands[1], kind), build.source(build.operands[2], kind)
    out = build.dest(build.operands[0], target_kind)
    compare = _comparison(name, NUMPY[kind].kind == "f" or kind == "bf16")
    true = NUMPY[target_kind].type(1.0) if target_kind == "f32" else np.uint32(0xFFFFFFFF).view(NUMPY[target_kind])

    def step(frame: Frame) -> None:
        x, y = frame[a], frame[b]
        if read is not None:
            x, y = read(x), read(y)
        result = np.empty(frame.lanes.count, np.bool_)
        compare(x, y, out=result)
        frame[out][...] = np.where(result, true, NUMPY[target_kind].type(0))

    return step


@defines("testp")
def _testp(build: Build) -> Step:
    """Ask what kind of number a float is."""
    what = build.take("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = build.type("f32", "f64")
    build.done(2)
    a, out = build.source(build.operands[1], kind), build.dest(build.operands[0], "pred")
    smallest = np.finfo(NUMPY[kind]).smallest_normal
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        # Zeros are normal numbers here, as PTX has it.
        "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= smallest) | (x == 0)),
        "subnormal": lambda x: (np.abs(x) < smallest) & (x != 0),
    }
    test = tests[what]

    def step(frame: Frame) -> None:
        frame[out][...] = test(frame[a])

    return step
