"""Places in the sources of what a kernel's trace builds, looked up once each."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def remembered_places() -> Iterator[None]:
    """Look up each instruction's place in the sources once while a kernel is traced.

    The DSL looks it up for every operation that it builds: it walks up the stack to the first frame that is not its
    own, reads the position table of that function up to the instruction, and makes a location of the compiler's,
    although operations of an unrolled loop come from few instructions. That is a third of the time of a trace. It has
    no setting for that, so two functions of the pinned version are replaced by ones that remember what they returned;
    the code is the same to the last bit. What is remembered is dropped at the end, with the functions that were traced.
    """
    from cutlass._mlir_helpers import op

    place, location = op._get_caller_frame_info, op._get_location_from_frame_info
    op._get_caller_frame_info = _Places(op._is_framework_stack_frame, op._fast_frameinfo).of_caller
    op._get_location_from_frame_info = _remembering(location)
    try:
        yield
    finally:
        op._get_caller_frame_info, op._get_location_from_frame_info = place, location


class _Places:
    """The places of instructions in the sources that are not the DSL's own."""

    def __init__(
        self, is_framework: Callable[[types.FrameType], bool], place: Callable[[types.FrameType], Any]
    ) -> None:
        self._is_framework, self._place = is_framework, place
        # Code objects of the same content compare equal across files: the key is their id, and they stay alive.
        self._framework: dict[int, tuple[types.CodeType, bool]] = {}
        self._places: dict[tuple[int, int], Any] = {}

    def of_caller(self) -> Any:
        """Return the place of the innermost frame that is not the DSL's, or of the caller's caller if all are."""
        first = sys._getframe(2)
        frame, framework = first, self._framework
        while True:
            code = frame.f_code
            known = framework.get(id(code))
            if known is None:
                known = framework[id(code)] = code, self._is_framework(frame)
            if not known[1]:
                break
            if frame.f_back is None:
                frame, code = first, first.f_code
                break
            frame = frame.f_back
        key = id(code), frame.f_lasti
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._place(frame)
        return place


def _remembering(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `function` that is called once for each object."""
    found: dict[int, tuple[Any, Any]] = {}

    def remember(given: Any) -> Any:
        known = found.get(id(given))
        if known is None:
            known = found[id(given)] = given, function(given)
        return known[1]

    return remember
