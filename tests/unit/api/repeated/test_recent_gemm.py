"""Calls of gemm with the very arrays of an earlier one, on tensors that stand in for a GPU's."""

from __future__ import annotations

import types

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError
from gemmule.runtime.replay import LOW
from support.fakes.plans import plans
from support.fakes.tensors import OUT, A, B, FakeTensor, fake, guarded, retained, state

__all__ = ["fake", "guarded", "plans", "retained", "state"]

BIAS, C = FakeTensor(0x5000, (4,)), FakeTensor(0x6000)


@pytest.fixture(autouse=True)
def looked_up(fake, guarded):
    """Count calls that are looked at the longer way."""
    longer = []
    describe = fake.describe

    def described(*arguments):
        longer.append(arguments)
        return describe(*arguments)

    fake.describe = described
    return longer


CALLS = {
    "alpha": ({"alpha": 2.0}, ()),
    "c": ({"c": C, "beta": 1.0}, (0x6000,)),
    "a bias": ({"bias": BIAS}, (0x5000,)),
    "c and a name": ({"c": C, "beta": 0.5, "epilogue": "relu"}, (0x6000,)),
    "a bias and a name": ({"bias": BIAS, "epilogue": "gelu", "alpha": 2}, (0x5000,)),
}


@pytest.mark.parametrize("out", [OUT, None], ids=["out", "no out"])
@pytest.mark.parametrize("name", CALLS)
def test_the_very_arrays_are_found_by_themselves(state, looked_up, name, out):
    given, further = CALLS[name]
    for number in range(5):
        result = gm.gemm(A, B, out=out, **given)
        assert out is None or result is out
        # The first is planned, the second finds what was planned.
        assert len(looked_up) == min(number + 1, 2)
    assert len(state.planned) == 1
    # The plan of the first tells PyTorch of the write itself.
    assert state.written == ([] if out is None else [OUT.address] * 4)
    state.stream = 8
    last = gm.gemm(A, B, out=out, **given)
    assert len(looked_up) == 2
    _, addresses, stream = state.queued[-1]
    wanted = {0x1000, 0x2000, *further, last.address}
    assert (set(addresses), stream) == (wanted, 8)
    assert addresses[0] == 0x1000
    assert out is not None or last is not result


@pytest.mark.parametrize("out", [OUT, None], ids=["out", "no out"])
@pytest.mark.parametrize("call", [gm.matmul, gm.gemm], ids=["matmul", "gemm"])
def test_the_current_stream_may_be_named(state, looked_up, call, out, retained):
    named = types.SimpleNamespace(cuda_stream=state.stream)
    for number, stream in enumerate([7, named, None, 7, named]):
        call(A, B, out=out, stream=stream)
        assert len(looked_up) == min(number + 1, 2)
    # Another one is looked at the longer way, every time.
    for number in range(3):
        call(A, B, out=out, stream=8)
        assert len(looked_up) == 3 + number
        assert state.queued[-1][2] == 8
    state.stream = 8
    call(A, B, out=out, stream=8)
    assert len(looked_up) == 5
    with pytest.raises(ArgumentError, match="stream of type str"):
        call(A, B, out=out, stream="fast")
    assert len(state.planned) == 1


OTHERS = {
    "alpha": {"alpha": 3.0},
    "beta": {"beta": 0.25},
    "another c": {"c": FakeTensor(0x7000, (4, 5))},
    "no epilogue": {"epilogue": None},
    "another epilogue": {"epilogue": "silu"},
    "out": {"out": FakeTensor(0x8000, stride=(1, 4))},
    "no out": {"out": None},
    "precision": {"precision": "tf32"},
    "a function": {"epilogue": lambda acc: gm.epilogue.exp(acc)},
    "the absolute maximum": {"absmax": FakeTensor(0xF000, (1,))},
    "a result on another stream": {"stream": 4, "out": None},
    "an array for alpha": {"alpha": np.array(2.0)},
    "truth for alpha": {"alpha": True},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_looked_at(state, name):
    usual = {"c": C, "alpha": 1.0, "beta": 0.5, "epilogue": "relu", "out": OUT}
    for _ in range(4):
        gm.gemm(A, B, **usual)
    assert len(state.planned) == 1
    gm.gemm(A, B, **usual | OTHERS[name])
    assert len(state.planned) == 2


@pytest.mark.parametrize("role", ["a", "b", "c", "bias", "out"])
def test_arrays_that_changed_are_not_found(state, role):
    arrays = {"a": FakeTensor(0x1000), "b": FakeTensor(0x2000), "c": FakeTensor(0x4000), "bias": FakeTensor(0x5000),
              "out": FakeTensor(0x3000)}  # fmt: skip

    def call():
        gm.gemm(
            arrays["a"], arrays["b"], arrays["c"], beta=1.0, bias=arrays["bias"], out=arrays["out"], epilogue="relu"
        )

    for _ in range(4):
        call()
    assert len(state.planned) == 1
    for attribute, value in {"shape": (4, 5), "dtype": "float16", "_neg": True, "_stride": (1, 4)}.items():
        before = getattr(arrays[role], attribute)
        setattr(arrays[role], attribute, value)
        planned = len(state.planned)
        call()
        assert len(state.planned) == planned + 1, attribute
        setattr(arrays[role], attribute, before)
    arrays[role].address += LOW // 2 + 1
    planned = len(state.planned)
    call()
    assert len(state.planned) == planned + 1


def test_an_output_that_moved_over_an_input_is_planned(state):
    out = FakeTensor(0x3000)
    for _ in range(4):
        gm.gemm(A, B, C, beta=1.0, bias=BIAS, out=out, epilogue="relu")
    for number, place in enumerate((0x1000, 0x2000, 0x5000, 0x6000), 2):
        out.address = place
        gm.gemm(A, B, C, beta=1.0, bias=BIAS, out=out, epilogue="relu")
        assert len(state.planned) == number, hex(place)


def test_c_in_place(state, looked_up):
    c = FakeTensor(0x6000)
    for _ in range(4):
        assert gm.gemm(A, B, c, beta=1.0, out=c) is c
    assert (len(state.planned), len(looked_up)) == (1, 2)
    assert state.queued[-1][1] == (0x1000, 0x2000, 0x6000, 0x6000)
    c.address = 0x2000
    gm.gemm(A, B, c, beta=1.0, out=c)
    assert len(state.planned) == 2


def test_nothing_holds_an_output(state, looked_up):
    import gc
    import weakref

    out = FakeTensor(0x8000)
    for _ in range(4):
        gm.gemm(A, B, C, beta=1.0, out=out)
    gone = weakref.ref(out)
    for what in (state.planned, state.queued, looked_up):
        what.clear()
    del out
    gc.collect()
    assert gone() is None


def test_an_array_that_is_a_and_b(state, looked_up):
    """It is asked for once; two arrays are another product, as what is decided for one may hold for it alone."""
    for _ in range(4):
        gm.gemm(A, A, out=OUT)
    assert len(looked_up) == 2
    other = FakeTensor(0x9000)
    for _ in range(4):
        gm.gemm(A, other, out=OUT)
    # The third time it is found by itself.
    assert (len(looked_up), len(state.planned)) == (4, 2)
    assert state.queued[-1][1] == (0x1000, 0x9000, 0x3000)
    other._stride = (1, 4)
    gm.gemm(A, other, out=OUT)
    assert len(looked_up) == 5
    gm.gemm(A, A, out=OUT)
    assert len(looked_up) == 5
    assert state.queued[-1][1] == (0x1000, 0x1000, 0x3000)
