"""Places in the sources of what a kernel's trace builds, looked up once each."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def remembered_places() -> Iterator[None]:
    """Look up each instruction's place in the sources once while a kernel is traced.

    The DSL looks it up for every operation that it builds, by the position table of a function up to the instruction,
    although operations of an unrolled loop come from few of them: a third of the time of a trace. It has no setting for
    that, so two functions of the pinned version are replaced by ones that remember what they returned; the code is the
    same to the last bit. What is remembered is dropped at the end, with the functions that were traced.
    """
    from cutlass._mlir_helpers import op

    place, is_framework = op._fast_frameinfo, op._is_framework_stack_frame
    op._fast_frameinfo = _remembering(place, lambda frame: frame.f_lasti)
    op._is_framework_stack_frame = _remembering(is_framework, lambda _: 0)
    try:
        yield
    finally:
        op._fast_frameinfo, op._is_framework_stack_frame = place, is_framework


def _remembering(
    function: Callable[[types.FrameType], Any], instruction: Callable[[types.FrameType], int]
) -> Callable[[types.FrameType], Any]:
    """Return `function` that is called once for each code object and instruction of it."""
    # Code objects of the same content are equal, whatever their files: they are told apart by id, and stay alive.
    found: dict[tuple[int, int], tuple[types.CodeType, Any]] = {}

    def remember(frame: types.FrameType) -> Any:
        key = id(frame.f_code), instruction(frame)
        if key not in found:
            found[key] = frame.f_code, function(frame)
        return found[key][1]

    return remember
