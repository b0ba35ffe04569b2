"""Products with an epilogue that were computed before, on tensors that stand in for a GPU's."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import ArgumentError
from support.fakes.cuda import FakeCuda, Result, installed
from support.fakes.plans import plans
from support.fakes.tensors import OUT, A, B, FakeParameter, FakeTensor, fake, retained, state

__all__ = ["fake", "plans", "retained", "state"]

BIAS = FakeTensor(0x5000, (4,))


def gemm(a, b, c=None, **options):
    return gm.gemm(a, b, c, **options)


def last(state):
    (_, operands, _), addresses, stream = state.queued[-1]
    return dict(zip(operands, addresses, strict=True)), stream


def test_the_second_call_is_not_planned(state):
    for _ in range(2):
        assert gemm(A, B, bias=BIAS, epilogue="relu", out=OUT) is OUT
    assert len(state.planned) == 1
    assert last(state) == ({"a": 0x1000, "b": 0x2000, "e0": 0x5000, "d": 0x3000}, 7)
    state.stream = 9
    other = FakeTensor(0x6000, (4,))
    gemm(FakeTensor(0x7000), B, bias=other, epilogue="relu", out=FakeTensor(0x8000))
    assert len(state.planned) == 1
    assert last(state) == ({"a": 0x7000, "b": 0x2000, "e0": 0x6000, "d": 0x8000}, 9)
    results = [gemm(A, B, bias=BIAS, epilogue="relu") for _ in range(3)]
    assert len(state.planned) == 2
    assert last(state)[0]["d"] == results[-1].address != results[-2].address


def test_functions_are_known_by_what_they_do(state):
    factor = 2.0
    for _ in range(2):
        gemm(A, B, epilogue=lambda acc: gm.epilogue.relu(acc) * factor, out=OUT)
    gemm(A, B, epilogue=lambda x: factor * gm.epilogue.relu(x), out=OUT)
    assert len(state.planned) == 1
    factor = 3.0
    gemm(A, B, epilogue=lambda acc: gm.epilogue.relu(acc) * factor, out=OUT)
    assert len(state.planned) == 2, "a number from outside the function has changed"


def test_a_function_is_called_once_a_call(state):
    called = []

    def counted(acc):
        called.append(acc)
        return gm.epilogue.relu(acc)

    for number in range(1, 4):
        gemm(A, B, epilogue=counted, out=OUT)
        assert len(called) == number
    assert len(state.planned) == 1


def test_inputs_and_numbers_of_a_function(state):
    def scaled(acc, x, s):
        return acc * s + x

    for _ in range(2):
        gemm(A, B, epilogue=scaled, epilogue_args={"x": BIAS, "s": 2.0}, out=OUT)
    assert len(state.planned) == 1
    assert last(state)[0]["e0"] == 0x5000
    for number, s in enumerate((0.0, -0.0, 3.0), 2):
        gemm(A, B, epilogue=scaled, epilogue_args={"x": BIAS, "s": s}, out=OUT)
        assert len(state.planned) == number
    gemm(A, B, epilogue=scaled, epilogue_args={"x": FakeTensor(0x5000, (4, 1)), "s": 2.0}, out=OUT)
    assert len(state.planned) == 5
    # Numbers that change places are others.
    for s, t in ((1.0, 2.0), (2.0, 1.0), (1.0, 2.0)):
        gemm(A, B, epilogue=lambda acc, s, t: (acc + s) * t, epilogue_args={"s": s, "t": t}, out=OUT)
    assert len(state.planned) == 7


def test_inputs_that_change_names_are_others(state):
    x, y = FakeTensor(0x5000), FakeTensor(0x6000)
    for _ in range(2):
        gemm(A, B, epilogue=lambda acc, x, y: (acc + x) * y, epilogue_args={"x": x, "y": y}, out=OUT)
    one = last(state)[0]
    gemm(A, B, epilogue=lambda acc, x, y: (acc + x) * y, epilogue_args={"y": y, "x": x}, out=OUT)
    gemm(A, B, epilogue=lambda acc, x, y: (acc + x) * y, epilogue_args={"y": y, "x": x}, out=OUT)
    assert last(state)[0] == one
    assert {one["e0"], one["e1"]} == {0x5000, 0x6000}
    gemm(A, B, epilogue=lambda acc, x, y: (acc + x) * y, epilogue_args={"x": y, "y": x}, out=OUT)
    assert last(state)[0] == one | {"e0": one["e1"], "e1": one["e0"]}


@pytest.mark.parametrize("storage", ["halves", "pairs"])
def test_halves_of_b_and_of_the_bias(state, storage):
    bias = FakeTensor(0x5000, (4,))
    for a in (0x1000, 0x7000):
        gemm(FakeTensor(a), B, bias=bias, epilogue="swiglu", gated=storage, out=FakeTensor(0x3000, (4, 2)))
    assert len(state.planned) == 1
    first = last(state)[0]
    places = {name: first.pop(name) for name in ("e0", "e1")}
    assert first == {"a": 0x7000, "b": 0x2000, "u": 0x2008, "d": 0x3000}
    # Which half of the bias is the first of the epilogue's matrices is its affair.
    assert set(places.values()) == {0x5000, 0x5008}
    gemm(FakeTensor(0x1000), FakeTensor(0x9000), bias=FakeTensor(0xB000, (4,)), epilogue="swiglu", gated=storage,
         out=FakeTensor(0x3000, (4, 2)))  # fmt: skip
    assert len(state.planned) == 1
    moved = {name: place + 0x6000 for name, place in places.items()}
    assert last(state)[0] == {"a": 0x1000, "b": 0x9000, "u": 0x9008, "d": 0x3000} | moved


def test_halves_are_not_taken_for_pairs(state):
    for number, storage in enumerate(("halves", "pairs", "halves", "pairs"), 1):
        gemm(A, B, epilogue="swiglu", gated=storage, out=FakeTensor(0x3000, (4, 2)))
        assert len(state.planned) == min(number, 2)


def test_two_matrices_of_a_gated_form(state):
    for second in (0x6000, 0x7000):
        gemm(A, B, gated=FakeTensor(second), epilogue="swiglu", out=OUT)
    assert len(state.planned) == 1
    assert last(state)[0] == {"a": 0x1000, "b": 0x2000, "u": 0x7000, "d": 0x3000}


OTHERS = {
    "the name": {"epilogue": "gelu"},
    "halves and pairs": {"epilogue": "swiglu", "gated": "pairs"},
    "halves": {"epilogue": "swiglu"},
    "no bias": {"bias": None},
    "alpha": {"alpha": 2.0},
    "c": {"c": FakeTensor(0x4000), "beta": 1.0},
    "out_dtype": {"out_dtype": "float32"},
    "shape of the bias": {"bias": FakeTensor(0x5000, (4, 1))},
    "alignment of the bias": {"bias": FakeTensor(0x5004, (4,))},
    "device": {"a": FakeTensor(0x1000, device=1), "b": FakeTensor(0x2000, device=1),
               "bias": FakeTensor(0x5000, (4,), device=1), "out": FakeTensor(0x3000, device=1)},
    "no out": {"out": None},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_product_depends_on_makes_another(state, name):
    usual = {"a": A, "b": B, "bias": BIAS, "epilogue": "relu", "out": OUT}
    for number, call in enumerate((usual, usual | OTHERS[name], usual, usual | OTHERS[name])):
        gemm(call["a"], call["b"], **{key: value for key, value in call.items() if key not in "ab"})
        assert len(state.planned) == min(number + 1, 2)


UNUSUAL = {
    "the absolute maximum in a": {"absmax": FakeTensor(0x1004, (1,))},
    "the absolute maximum in the bias": {"absmax": FakeTensor(0x500C, (1,))},
    "the absolute maximum in out": {"absmax": FakeTensor(0x3000, (1,))},
    "the absolute maximum in b, without out": {"absmax": FakeTensor(0x203C, (1,)), "out": None},
    "gradients": {"bias": FakeTensor(0x5000, (4,), grad=True)},
    "another device": {"bias": FakeTensor(0x5000, (4,), device=1)},
    "not hashable": {"out_dtype": ["float32"]},
    "out in the bias": {"bias": FakeTensor(0x3004, (4,))},
    "out is an input": {"epilogue": lambda acc, x: acc + x, "epilogue_args": {"x": OUT}},
    "alpha is NaN": {"alpha": float("nan")},
    "the type of b": {"b": 3.0},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_always_planned(state, retained, cleared, name):
    call = {"a": A, "b": B, "bias": BIAS, "epilogue": "relu", "out": OUT}
    gemm(A, B, bias=BIAS, epilogue="relu", out=OUT)
    call |= UNUSUAL[name]
    known = {"out": FakeTensor(0x900000)} | ({"absmax": FakeTensor(0xF004, (1,))} if "absmax" in call else {})
    gemm(A, FakeTensor(0x2000), **{k: v for k, v in call.items() if k not in "ab"} | known)
    before = len(state.planned)
    for number in range(1, 4):
        gemm(call["a"], call["b"], **{key: value for key, value in call.items() if key not in "ab"})
        assert len(state.planned) == before + number


class Clearing(FakeCuda):
    """Writes down what is cleared among what is queued."""

    def __init__(self, queued):
        super().__init__()
        self.queued = queued

    def cuMemsetD8Async(self, address, byte, nbytes, stream):
        self.queued.append(("cleared", address, byte, nbytes, stream))
        return (Result.CUDA_SUCCESS,)


@pytest.fixture
def cleared(state):
    with installed(Clearing(state.queued)) as fake:
        yield fake


@pytest.mark.parametrize("epilogue", ["relu", None])
def test_the_absolute_maximum_is_cleared_in_front(state, cleared, epilogue):
    for place in (0xF000, 0xF000, 0xE000):
        gemm(A, B, bias=BIAS, epilogue=epilogue, absmax=FakeTensor(place, (1,)), out=OUT)
    assert len(state.planned) == 1
    for clear, place in zip(state.queued[::2], (0xF000, 0xE000), strict=True):
        assert clear == ("cleared", place, 0, 4, 7)
    assert last(state)[0] == {"a": 0x1000, "b": 0x2000, "e0": 0x5000, "absmax": 0xE000, "d": 0x3000}
    results = [gemm(A, B, bias=BIAS, epilogue=epilogue, absmax=FakeTensor(0xF000, (1,))) for _ in range(3)]
    assert len(state.planned) == 2
    assert last(state)[0]["d"] == results[-1].address
    # Without it, it is another product.
    gemm(A, B, bias=BIAS, epilogue=epilogue, out=OUT)
    assert len(state.planned) == 3


def test_kernels_clear_the_absolute_maximum(state, cleared, monkeypatch):
    monkeypatch.setattr("support.fakes.call_caches.CLEARS_ABSMAX", True)
    for place in (0xF000, 0xF000, 0xE000):
        gemm(A, B, bias=BIAS, absmax=FakeTensor(place, (1,)), out=OUT)
    assert len(state.planned) == 1
    assert all(queued[0] != "cleared" for queued in state.queued)
    assert last(state)[0]["absmax"] == 0xE000


def test_c_may_be_the_output(state):
    c = FakeTensor(0x4000)
    for _ in range(2):
        gemm(A, B, c, epilogue=lambda acc, c: acc + c, out=c)
    assert len(state.planned) == 1
    assert last(state)[0] == {"a": 0x1000, "b": 0x2000, "c": 0x4000, "d": 0x4000}


def test_what_is_wrong_is_said_of_calls_that_are_known(state):
    gemm(A, B, epilogue="relu", out=OUT)
    with pytest.raises(ArgumentError, match="epilogue='rely' is not known"):
        gemm(A, B, epilogue="rely", out=OUT)
    with pytest.raises(ArgumentError, match=r"epilogue='swish' is not known; did you mean 'silu'\?$"):
        gemm(A, B, epilogue="swish", out=OUT)
    with pytest.raises(ArgumentError, match=r"'sigmoid' is not known; pass the function gemmule\.epilogue\.sigmoid"):
        gemm(A, B, epilogue="sigmoid", out=OUT)
    with pytest.raises(ArgumentError, match="gated='thirds' is not known"):
        gemm(A, B, epilogue="swiglu", gated="thirds", out=OUT)
    with pytest.raises(ArgumentError, match="epilogue_args belong to a function"):
        gemm(A, B, epilogue="relu", epilogue_args={"x": 1.0}, out=OUT)


def test_parameters_and_forgetting(state):
    state.gradients = False
    gemm(A, FakeParameter(0x2000), epilogue="relu", out=OUT)
    gemm(A, B, epilogue="relu", out=OUT)
    assert len(state.planned) == 1
    CALLS.forget()
    gemm(A, B, epilogue="relu", out=OUT)
    assert len(state.planned) == 2
