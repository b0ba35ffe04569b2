"""Transposes that were computed before, on tensors that stand in for a GPU's."""

from __future__ import annotations

import types

import pytest

import gemmule as gm
from gemmule.api.calls import dispatcher
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import ArgumentError
from gemmule.core.problem import TransposeProblem
from support.fakes import call_caches, planners
from support.fakes.tensors import OUT, A, FakeTensor, fake, guarded, retained, state

__all__ = ["fake", "guarded", "retained", "state"]


class Problem(TransposeProblem):
    """What a plan has, of a problem within one array or not."""

    def __init__(self, in_place):
        object.__setattr__(self, "in_place", in_place)


@pytest.fixture(autouse=True)
def plans(monkeypatch, fake, state):
    def plan_transpose(x, order_of, *, out, stream, executor):
        order_of(len(x.shape))
        state.planned.append((x, out, stream, executor))
        result = out if out is not None else FakeTensor(0x700000 + 0x1000 * len(state.planned))
        problem = Problem(out is not None and out.address == x.address)
        plan = types.SimpleNamespace(executor="gpu", choice="choice", problem=problem, execute=lambda: result)
        plan.execution = call_caches.execution(plan, ("a", "once more", "d"), x)
        return plan

    planners.replaced(monkeypatch, "plan_transpose", plan_transpose)


def test_the_second_call_is_not_planned(state):
    for source in (A, A, FakeTensor(0x7000)):
        assert gm.matrix_transpose(source, out=OUT) is OUT
    assert len(state.planned) == 1
    kind = (1, ("a", "once more", "d"), 0)
    assert state.queued == [(kind, (0x1000, 0x1000, 0x3000), 7), (kind, (0x7000, 0x7000, 0x3000), 7)]
    results = [gm.matrix_transpose(A) for _ in range(3)]
    assert len(state.planned) == 2
    assert state.queued[-1][1] == (0x1000, 0x1000, results[-1].address)
    assert results[-1] is not results[-2]


OTHERS = {
    "the last two": lambda x: gm.matrix_transpose(x, out=OUT),
    "axes": lambda x: gm.transpose(x, (1, 0), out=OUT),
    "the same axes": lambda x: gm.transpose(x, (0, 1), out=OUT),
    "a shape": lambda x: gm.transpose(FakeTensor(0x1000, (2, 8)), out=OUT),
    "a type": lambda x: gm.transpose(FakeTensor(0x1000, dtype="float16"), out=OUT),
    "alignment": lambda x: gm.transpose(FakeTensor(0x1004), out=OUT),
    "an executor": lambda x: gm.transpose(x, out=OUT, executor="gpu"),
    "no out": lambda x: gm.transpose(x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_transpose_depends_on_makes_another(state, name):
    for number in range(6):
        OTHERS[name](A) if number % 2 else gm.transpose(A, out=OUT)
        assert len(state.planned) == min(number + 1, 2)


def test_axes_are_known_by_their_numbers(state):
    for axes in ((1, 0), [1, 0], range(1, -1, -1)):
        gm.transpose(A, axes, out=OUT)
    assert len(state.planned) == 1
    with pytest.raises(ArgumentError, match="sequence of integers"):
        gm.transpose(A, (1.0, 0.0), out=OUT)


UNUSUAL = {
    "within one array": lambda: gm.transpose(A, out=A),
    "in the place of the array": lambda: gm.transpose(A, out=FakeTensor(0x1000)),
    "an output that begins in the array": lambda: gm.transpose(A, out=FakeTensor(0x1020)),
    "conjugated": lambda: gm.transpose(FakeTensor(0x1000, conj=True), out=OUT),
    "out is conjugated": lambda: gm.transpose(A, out=FakeTensor(0x3000, conj=True)),
    "gradients": lambda: gm.transpose(FakeTensor(0x1000, grad=True), out=OUT),
    "host": lambda: gm.transpose(FakeTensor(0x1000, device=-1), out=OUT),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_always_planned(state, name):
    gm.transpose(A, out=OUT)
    gm.transpose(A, out=FakeTensor(0x900020))
    gm.transpose(A)
    before = len(state.planned)
    for number in range(1, 4):
        UNUSUAL[name]()
        assert len(state.planned) == before + number
    assert not state.queued


def test_a_transpose_within_an_array_is_not_taken_for_one_of_two(state):
    gm.transpose(A, out=FakeTensor(0x1000))
    for _ in range(3):
        gm.transpose(A, out=OUT)
    assert len(state.planned) == 2


def test_a_stream_that_is_named(state, retained):
    for stream in (3, 4):
        gm.transpose(A, out=OUT, stream=stream)
    assert len(state.planned) == 1
    assert retained == [(((A,), OUT), 0, 4)]


def test_axes_that_can_be_read_once_are_left_to_the_plan():
    axes = iter((1, 0))
    assert dispatcher._named(axes) != dispatcher._named(axes)
    assert list(axes) == [1, 0]


@pytest.mark.parametrize("transpose", [gm.transpose, gm.matrix_transpose], ids=["transpose", "matrix_transpose"])
@pytest.mark.parametrize("out", [OUT, None], ids=["out", "no out"])
def test_the_very_arrays_are_found_by_themselves(state, guarded, monkeypatch, retained, transpose, out):
    longer = []
    library = CALLS.library(FakeTensor)
    describe = library.describe
    library.describe = lambda *arguments: longer.append(arguments) or describe(*arguments)
    for number in range(4):
        result = transpose(A, out=out)
        assert out is None or result is out
        assert len(longer) == min(number + 1, 2)
    assert state.queued[-1][1:] == ((0x1000, 0x1000, result.address), 7)
    transpose(A, out=out, stream=7)
    assert len(longer) == 2
    transpose(A, out=out, stream=8)
    assert (len(longer), state.queued[-1][2]) == (3, 8)
    assert len(state.planned) == 1
    # The other function, other axes and another array are not taken for it.
    other = gm.matrix_transpose if transpose is gm.transpose else gm.transpose
    other(A, out=out)
    transpose(FakeTensor(0x5000, (4, 5)), out=out)
    gm.transpose(A, (0, 1), out=out)
    assert len(longer) == 6
    monkeypatch.setattr(A, "_stride", (1, 4))
    transpose(A, out=out)
    assert len(longer) == 7
