"""Places in the sources that are remembered while a kernel is traced."""

from __future__ import annotations

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
    return names["trace"](lambda: op._get_caller_frame_info())


def test_each_instruction_is_looked_up_once():
    with remembered_places():
        first, again, next_one = traced_in("kernel.py")
    assert first is again
    assert (first.lineno, next_one.lineno) == (5, 6)
    assert (first, next_one) == tuple(traced_in("kernel.py")[1:])


def test_equal_functions_of_two_files_have_places_of_their_own():
    with remembered_places():
        assert [traced_in(file)[0].filename for file in ("one.py", "other.py")] == ["one.py", "other.py"]


def test_frames_of_the_dsl_are_passed_over():
    inner = {"__name__": "cutlass.somewhere"}
    exec("def look_up(op): return (lambda: op._get_caller_frame_info())()", inner)
    with remembered_places():
        places = [inner["look_up"](op) for _ in range(2)]
    assert places[0].filename == __file__
    assert places[0] is places[1]


def test_locations_are_made_once():
    ir = pytest.importorskip("cutlass._mlir.ir")
    with ir.Context(), remembered_places():
        first, again, next_one = map(op._get_location_from_frame_info, traced_in("kernel.py"))
        assert first is again
        assert str(first) != str(next_one)


def test_nothing_is_remembered_afterwards():
    before = op._get_caller_frame_info, op._get_location_from_frame_info
    with remembered_places():
        traced_in("kernel.py")
        assert op._get_caller_frame_info is not before[0]
    assert (op._get_caller_frame_info, op._get_location_from_frame_info) == before
    first, again, _ = traced_in("kernel.py")
    assert first is not again
