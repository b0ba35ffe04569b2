"""Instructions that compute each lane on its own: a function of arrays, the last of which is the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .define import Build, Step
from .registers import Frame

#: Called with the sources and then the destination, as NumPy's ufuncs are.
Function = Callable[..., Any]


def elementwise(build: Build, function: Function, kind: str, *sources: str) -> Step:
    """Return the step that calls `function` with the sources, of those types, and the destination of type `kind`."""
    build.done(len(sources) + 1)
    slots = [build.source(operand, source) for operand, source in zip(build.operands[1:], sources, strict=True)]
    target = build.dest(build.operands[0], kind)
    return call(function, slots, target)


def call(function: Function, slots: list[int], target: int) -> Step:
    """Return a step that calls `function` with those slots."""
    if len(slots) == 1:
        (a,) = slots

        def step(frame: Frame) -> None:
            function(frame[a], frame[target])
    elif len(slots) == 2:
        a, b = slots

        def step(frame: Frame) -> None:
            function(frame[a], frame[b], frame[target])
    elif len(slots) == 3:
        a, b, c = slots

        def step(frame: Frame) -> None:
            function(frame[a], frame[b], frame[c], frame[target])
    else:

        def step(frame: Frame) -> None:
            function(*(frame[slot] for slot in slots), frame[target])

    return step
