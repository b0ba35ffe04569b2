"""Products that were computed before, on tensors that stand in for a GPU's."""

from __future__ import annotations

import types

import numpy as np
import pytest

from gemmule.api.calls.call_cache import CALLS
from gemmule.api.calls.dispatcher import usual_scalars
from gemmule.core.errors import ArgumentError
from gemmule.runtime.arrays import call_arrays_of
from gemmule.runtime.arrays.descriptions import bounds_of_strides
from support.fakes import planners
from support.fakes.launches import launched
from support.fakes.tensors import (
    OUT,
    A,
    B,
    FakeParameter,
    FakeTensor,
    Subclass,
    WithoutMemory,
    fake,
    gemm,
    matmul,
    retained,
    state,
)

__all__ = ["fake", "launched", "retained", "state"]


def test_the_second_call_is_not_planned(state):
    assert matmul(A, B, OUT) is OUT
    assert matmul(A, B, OUT) is OUT
    state.stream = 9
    other = FakeTensor(0x7000)
    assert matmul(FakeTensor(0x5000), FakeTensor(0x6000), other) is other
    assert len(state.planned) == 1
    kind = (1, ("a", "b", "d"), 0)
    assert state.queued == [(kind, (0x1000, 0x2000, 0x3000), 7), (kind, (0x5000, 0x6000, 0x7000), 9)]


def test_the_library_hears_of_every_write_to_an_array_of_the_caller(state):
    for _ in range(3):
        matmul(A, B)
    assert state.written == []
    matmul(A, B, OUT)
    for _ in range(3):
        matmul(A, B, OUT)
    # The plan tells of the first one itself.
    assert state.written == [OUT.address] * 3


@pytest.mark.parametrize("out", [None, OUT])
def test_the_library_hears_of_every_write_to_an_absolute_maximum(state, launched, out):
    largest = FakeTensor(0x8000, (1,))
    for _ in range(3):
        gemm(A, B, out=out, epilogue="relu", absmax=largest)
    assert len(state.planned) == 1
    # The plan tells of the first one itself.
    assert sorted(state.written) == sorted([*([] if out is None else [OUT.address]), largest.address] * 2)


def test_within_a_mode_every_product_is_planned(state):
    matmul(A, B, OUT)
    state.modes = 1
    matmul(A, B, OUT)
    matmul(A, B, OUT)
    state.modes = 0
    matmul(A, B, OUT)
    assert len(state.planned) == 3


def test_a_new_result_at_every_call(state):
    first = matmul(A, B)
    second, third = matmul(A, B), matmul(A, B)
    assert len(state.planned) == 1
    assert len({first.address, second.address, third.address}) == 3
    assert [addresses for _, addresses, _ in state.queued] == [
        (0x1000, 0x2000, second.address),
        (0x1000, 0x2000, third.address),
    ]


OTHERS = {
    "shape": {"a": FakeTensor(0x1000, (5, 4))},
    "strides": {"b": FakeTensor(0x2000, stride=(1, 4))},
    "strides of out": {"out": FakeTensor(0x3000, stride=(1, 4))},
    "type": {"a": FakeTensor(0x1000, dtype="float16")},
    "alignment": {"a": FakeTensor(0x1010)},
    "another operand's alignment": {"b": FakeTensor(0x2010)},
    "alignment of out": {"out": FakeTensor(0x3010)},
    "a parameter is a tensor": {"b": FakeParameter(0x2010)},
    "no out": {"out": None},
    "out_dtype": {"out_dtype": "float32"},
    "precision": {"precision": "tf32"},
    "executor": {"executor": "gpu"},
    "device": {"a": FakeTensor(0x1000, device=1), "b": FakeTensor(0x2000, device=1), "out": FakeTensor(1, device=1)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_product_depends_on_makes_another(state, name):
    usual = {"a": A, "b": B, "out": OUT}
    other = usual | OTHERS[name]
    for number, call in enumerate((usual, other, usual, other, other)):
        rest = {key: value for key, value in call.items() if key not in "ab"}
        matmul(call["a"], call["b"], **rest)
        assert len(state.planned) == min(number + 1, 2)


def test_other_low_bits_of_one_alignment_are_the_same_product(state):
    matmul(FakeTensor(0x1010), B, OUT)
    matmul(FakeTensor(0x1030), B, OUT)
    assert len(state.planned) == 1


UNUSUAL = {
    "gradients": {"a": FakeTensor(0x1000, grad=True)},
    "gradients of out": {"out": FakeTensor(0x3000, grad=True)},
    "negated": {"b": FakeTensor(0x2000, neg=True)},
    "out is negated": {"out": FakeTensor(0x3000, neg=True)},
    "host": {"a": FakeTensor(0x1000, device=-1)},
    "two devices": {"b": FakeTensor(0x2000, device=1)},
    "a subclass": {"b": Subclass(0x2000)},
    "out is a subclass": {"out": Subclass(0x3000)},
    "another type": {"b": 3.0},
    "without memory": {"a": WithoutMemory(0)},
    "not hashable": {"out_dtype": ["float32"]},
    "out is a": {"out": FakeTensor(0x1000)},
    "out begins in a": {"out": FakeTensor(0x1000 + 60)},
    "out ends in b": {"out": FakeTensor(0x2000 - 60)},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_always_planned(state, name):
    call = {"a": A, "b": B, "out": OUT} | UNUSUAL[name]
    # A product of the same key, where it has one, is known.
    matmul(A, B, OUT)
    matmul(A, B, FakeTensor((call["out"] or OUT).address + 0x100000))
    matmul(A, B)
    before = len(state.planned)
    for number in range(1, 4):
        matmul(call["a"], call["b"], **{key: value for key, value in call.items() if key not in "ab"})
        assert len(state.planned) == before + number
    assert all(addresses[2] == 0x3000 or addresses[2] > 0x100000 for _, addresses, _ in state.queued)


def test_a_stream_that_is_named(state, retained):
    for stream in (3, types.SimpleNamespace(cuda_stream=4), 5):
        assert matmul(A, B, OUT, stream=stream) is OUT
    assert len(state.planned) == 1
    assert [stream for _, _, stream in state.queued] == [4, 5]
    # PyTorch does not know of the other stream's work.
    assert retained == [(((A, B, None, None), OUT), 0, stream) for stream in (4, 5)]
    with pytest.raises(ArgumentError, match="stream of type str"):
        matmul(A, B, OUT, stream="fast")


def test_a_result_on_a_stream_that_is_named(state, retained):
    """Its memory is that stream's, as the work is."""
    a, b = FakeTensor(0x1000, device=1), FakeTensor(0x2000, device=1)
    results = [matmul(a, b, stream=stream) for stream in (4, 4, 5)]
    assert len(state.planned) == 1
    assert [(addresses[2], stream) for _, addresses, stream in state.queued] == [
        (results[1].address, 4), (results[2].address, 5)
    ]  # fmt: skip
    assert state.made_on[1:] == [104, 105]
    assert state.stream == 7
    assert retained == [(((a, b, None, None), None), 0, stream) for stream in (4, 5)]


def test_the_current_stream_may_be_named(state, retained):
    results = [matmul(A, B, stream=state.stream) for _ in range(3)]
    matmul(A, B, OUT, stream=state.stream)
    matmul(A, B, OUT)
    assert len(state.planned) == 2
    assert [(addresses[2], stream) for _, addresses, stream in state.queued] == [
        (results[1].address, 7), (results[2].address, 7), (0x3000, 7)
    ]  # fmt: skip
    assert not retained


def test_a_bias_is_told_from_c_and_kept_under_its_own_name(state):
    bias = FakeTensor(0x5000)
    state.bias_is = "e0"
    for _ in range(2):
        gemm(A, B, bias=bias, out=OUT)
    gemm(A, B, bias, beta=1.0, out=OUT)
    gemm(A, B, bias, out=bias)
    gemm(A, B, bias, bias=bias)
    assert len(state.planned) == 4
    ((_, operands, _), addresses, _), *_ = state.queued
    assert operands == ("a", "b", "e0", "d")
    assert addresses == (0x1000, 0x2000, 0x5000, 0x3000)
    gemm(A, B, bias=bias, out=bias)
    assert len(state.planned) == 5, "the output may overlap the bias, which the plan judges"


def test_a_bias_in_the_place_of_c(state):
    bias, c = FakeTensor(0x5000), FakeTensor(0x6000)
    for _ in range(2):
        gemm(A, B, bias=bias)
    assert state.queued[0][0][1] == ("a", "b", "c", "d")
    for _ in range(2):
        gemm(A, B, c, bias=bias)  # beta is 0: C is not read
    assert len(state.planned) == 2
    assert state.queued[-1][0][1] == ("a", "b", "c", "d")
    assert state.queued[-1][1][2] == 0x5000


def test_memory_that_only_touches_is_apart(state):
    matmul(A, B, OUT)
    matmul(A, B, FakeTensor(0x1000 + 64 + 192))
    matmul(FakeTensor(0x3000 + 64 + 192), B, OUT)
    assert len(state.planned) == 1


def test_gradients_matter_where_they_are_recorded(state):
    state.gradients = False
    for _ in range(2):
        matmul(FakeTensor(0x1000, grad=True), B, OUT)
    assert len(state.planned) == 1


def test_scalars(state):
    c = FakeTensor(0x4000)
    gemm(A, B, alpha=2.0, out=OUT)
    gemm(A, B, alpha=2, out=OUT)
    assert len(state.planned) == 1
    gemm(A, B, alpha=3.0, out=OUT)
    gemm(A, B, c, alpha=2.0, beta=1.0, out=OUT)
    gemm(A, B, c, alpha=2.0, beta=1.0, out=OUT)
    gemm(A, B, c, alpha=2.0, beta=2.0, out=OUT)
    assert len(state.planned) == 4
    for alpha, beta in ((0.0, 0.0), (-0.0, 0.0), (float("nan"), 0.0), (1.0, float("nan")), (np.float32(2), 0.0)):
        before = len(state.planned)
        gemm(A, B, c, alpha=alpha, beta=beta, out=OUT)
        gemm(A, B, c, alpha=alpha, beta=beta, out=OUT)
        assert len(state.planned) == before + 2


def test_c_may_be_the_output_and_not_overlap_it(state):
    c = FakeTensor(0x4000)
    gemm(A, B, c, beta=1.0, out=c)
    gemm(A, B, c, beta=1.0, out=c)
    assert len(state.planned) == 1
    assert state.queued == [((1, ("a", "b", "c", "d"), 0), (0x1000, 0x2000, 0x4000, 0x4000), 7)]
    for _ in range(2):
        gemm(A, B, c, beta=1.0, out=OUT)
    assert len(state.planned) == 2
    # The same place and another tensor: it is looked at closely.
    gemm(A, B, c, beta=1.0, out=FakeTensor(0x4000))
    assert len(state.planned) == 3
    gemm(A, B, FakeTensor(0x4100), beta=1.0, out=FakeTensor(0x4100 + 256))
    assert len(state.planned) == 3


def test_the_oldest_makes_room(state, monkeypatch):
    planners.limited(monkeypatch, MOST_CALLS=3)
    for rows in (1, 2, 3, 4):
        matmul(FakeTensor(0x1000, (rows, 4)), B, OUT)
    # Of three the older two went.
    assert len(CALLS.by_description) == 2
    for rows in (3, 4):
        matmul(FakeTensor(0x1000, (rows, 4)), B, OUT)
    assert len(state.planned) == 4
    matmul(FakeTensor(0x1000, (1, 4)), B, OUT)
    assert len(state.planned) == 5
    CALLS.forget()
    matmul(FakeTensor(0x1000, (4, 4)), B, OUT)
    assert len(state.planned) == 6


def test_reach():
    assert bounds_of_strides((3, 4), (16, 4), 4) == (0, 48)
    assert bounds_of_strides((3, 4), (-16, 4), 4) == (-32, 16)
    assert bounds_of_strides((3, 4), (0, 8), 4) == (0, 28)


def test_usual_scalars():
    assert usual_scalars(1.0, 0)
    assert not usual_scalars(True, 0.0)
    assert not usual_scalars(1.0, np.float64(1.0))


def test_other_arrays_are_not_known(state, monkeypatch):
    libraries = {}
    monkeypatch.setattr(CALLS, "libraries", libraries)
    for kind in (np.ma.MaskedArray, *[type(f"Array{number}", (), {"device": "cpu"}) for number in range(100)]):
        matmul(kind([1.0]) if kind is np.ma.MaskedArray else kind(), B, OUT)
    assert libraries[np.ma.MaskedArray] is None
    assert len(libraries) == CALLS._MOST_TYPES
    assert len(state.planned) == 101
    assert call_arrays_of(int) is None
