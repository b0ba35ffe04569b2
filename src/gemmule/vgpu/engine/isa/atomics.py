"""Atomic operations: lanes one after another in order, one possible order of the hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from gemmule.vgpu.types import NUMPY, Array, size_of

from ..definition import Build, Step, defines
from ..running_batch import Frame
from ..spaces import address_of, locator, refuse_parameters, space_of, words

_TYPES = ("u32", "s32", "u64", "s64", "b32", "b64", "b16", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2")
#: Floating-point elements of types that registers hold as bits.
_ELEMENTS = {
    "f16": np.dtype(np.float16), "f16x2": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "bf16x2": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")


def _apply(name: str, old: Array, value: Array, compare: Array | None) -> Array:
    """Return the value in memory after the operation."""
    one = old.dtype.type(1) if old.dtype.kind in "iu" else None
    if name == "cas":
        assert compare is not None
        return np.where(old == compare, value, old)
    operations: dict[str, Callable[[], Array]] = {
        "add": lambda: old + value,
        "min": lambda: np.minimum(old, value),
        "max": lambda: np.maximum(old, value),
        "inc": lambda: np.where(old >= value, 0, old + one).astype(old.dtype),
        "dec": lambda: np.where((old == 0) | (old > value), value, old - one).astype(old.dtype),
        "and": lambda: old & value,
        "or": lambda: old | value,
        "xor": lambda: old ^ value,
        "exch": lambda: value,
    }
    return operations[name]()


@defines("atom", "red")
def _atom(build: Build) -> Step:
    """Change memory in one step; ``atom`` gives what was there before."""
    returns = build.instruction.name == "atom"
    build.flag("noftz")
    name = build.take(*_OPERATIONS)
    space = space_of(build)
    kind = build.type(*_TYPES)
    # Packed values are two: an atomic operation on each.
    element = _ELEMENTS.get(kind, NUMPY[kind])
    if kind in _ELEMENTS and name != "add":
        raise build.error(f"{name} of {kind} is no atomic operation of PTX")
    if kind == "b16" and name not in ("cas", "exch"):
        raise build.error(f"{name} of b16 is no atomic operation of PTX")
    operands = list(build.operands)
    target = operands.pop(0) if returns else None
    build.done(*((3, 4) if returns else (2,)))
    size = size_of(kind)
    locate = locator(build, space, address_of(build, operands[0]), size)
    compare = build.source(operands[1], kind) if name == "cas" else None
    value = build.source(operands[2 if name == "cas" else 1], kind)
    out = build.dest(target, kind) if target is not None else None
    dtype = NUMPY[kind]
    instruction = build.instruction

    def atomic(frame: Frame) -> None:
        space, position, address = locate(frame)
        refuse_parameters(build, frame, space)
        if frame.batch.observers:
            frame.batch.access(instruction, frame.lanes, space, address, size, read=True, write=True, atomic=True)
        memory = words(frame, space, size).view(dtype)
        index = position // size
        count = frame.lanes.count
        values = np.broadcast_to(np.asarray(frame[value]), (count,))
        compares = None if compare is None else np.broadcast_to(np.asarray(frame[compare]), (count,))
        before = np.empty(count, dtype)
        for lanes in _turns(index):
            where = index[lanes]
            old = memory[where]
            before[lanes] = old
            new = _apply(
                name, old.view(element), values[lanes].view(element), None if compares is None else compares[lanes]
            )
            memory[where] = new.view(dtype)
        if out is not None:
            frame[out][...] = before

    return atomic


def _turns(index: Array) -> list[Any]:
    """Return groups of lanes, none of which has two of the same address, in the lanes' order for each address."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(index)]]))
    turn = np.arange(len(index)) - np.repeat(starts, lengths)
    return [order[turn == number] for number in range(int(lengths.max()))]
