"""Places in the sources that are remembered while a kernel is traced."""

from __future__ import annotations

import sys

import pytest

from gemmule.compiler.source_places import remembered_places

op = pytest.importorskip("cutlass._mlir_helpers.op", reason="the kernel compiler is not installed")

#: Two instructions, of which the first runs twice, and a caller's code.
TRACED = """
def trace(look_up):
    found = []
    for _ in range(2):
        found.append(look_up())
    return [*found, look_up()]
"""


def traced_in(file):
    """Places of three operations that a function of a file builds."""
    names = {}
    exec(compile(TRACED, file, "exec"), names)
    return names["trace"](lambda: op._fast_frameinfo(sys._getframe(1)))


def test_each_instruction_is_looked_up_once():
    with remembered_places():
        first, again, next_one = traced_in("kernel.py")
    assert first is again
    assert (first.lineno, next_one.lineno) == (5, 6)
    assert (first, next_one) == tuple(traced_in("kernel.py")[1:])


def test_equal_functions_of_two_files_have_places_of_their_own():
    with remembered_places():
        assert [traced_in(file)[0].filename for file in ("one.py", "other.py")] == ["one.py", "other.py"]


def test_nothing_is_remembered_afterwards():
    before = op._fast_frameinfo, op._is_framework_stack_frame
    with remembered_places():
        traced_in("kernel.py")
        assert op._fast_frameinfo is not before[0]
    assert (op._fast_frameinfo, op._is_framework_stack_frame) == before
    first, again, _ = traced_in("kernel.py")
    assert first is not again
