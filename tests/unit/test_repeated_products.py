"""Products that were computed before, on tensors that stand in for a GPU's."""

from __future__ import annotations

import itertools
import types

import numpy as np
import pytest

from gemmule.api import kept, known_arrays, prepared, recent
from gemmule.api.known_arrays import TorchArrays, reach_of, usual_scalars
from gemmule.core.errors import ArgumentError

NEW = itertools.count(0xA00000, 0x1000)


class FakeTensor:
    """What is asked of a tensor; its strides are in elements of four bytes."""

    def __init__(
        self, address, shape=(4, 4), stride=None, device=0, dtype="float32", grad=False, neg=False, conj=False
    ):
        self.address, self.shape, self.dtype, self.requires_grad = address, shape, dtype, grad
        self._stride = stride or tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        self._device, self._neg, self._conj, self.device = device, neg, conj, f"cuda:{device}"

    def data_ptr(self):
        return self.address

    def stride(self):
        return self._stride

    def get_device(self):
        return self._device

    def is_neg(self):
        return self._neg

    def is_conj(self):
        return self._conj

    def element_size(self):
        return 4

    def new_empty(self, shape):
        return FakeTensor(next(NEW), shape, dtype=self.dtype)


class FakeParameter(FakeTensor):
    pass


class Subclass(FakeTensor):
    pass


class WithoutMemory(FakeTensor):
    def data_ptr(self):
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


A, B, OUT = (FakeTensor(address) for address in (0x1000, 0x2000, 0x3000))


@pytest.fixture
def state():
    return types.SimpleNamespace(stream=7, gradients=True, planned=[], queued=[], made=0, bias_is="c")


@pytest.fixture(autouse=True)
def fake(monkeypatch, state):
    """A library, a planner and a GPU that write down what they are asked."""
    torch = types.SimpleNamespace(
        Tensor=FakeTensor,
        nn=types.SimpleNamespace(Parameter=FakeParameter),
        is_grad_enabled=lambda: state.gradients,
        _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: state.stream + 100 * device),
        float16="float16",
    )

    def empty(shape, dtype, device):
        state.made += 1
        return FakeTensor(0x900000 + 0x1000 * state.made, shape, dtype=dtype)

    torch.empty = empty
    library = TorchArrays(torch)

    def plan_product(operation, a, b, **options):
        state.planned.append((operation, a, b, options))
        result = options["out"] if options["out"] is not None else empty((4, 4), "float32", a.device)
        given = {"a": a, "b": b} | ({"c": options["c"]} if options.get("beta") else {})
        places = {role: (role, getattr(x, "address", 0)) for role, x in given.items()}
        if options["bias"] is not None:
            places[state.bias_is] = ("bias", options["bias"].address)
        plan = {"executor": "gpu", "choice": "choice", "problem": "problem", "places": places}
        return types.SimpleNamespace(**plan, execute=lambda: result)

    def repeated(problem, choice, operands, addresses, ordinal):
        kind = (len(state.planned), operands, ordinal)
        return lambda addresses, stream: state.queued.append((kind, addresses, stream))

    monkeypatch.setattr(prepared, "plan_product", plan_product)
    monkeypatch.setattr("gemmule.runtime.repeated.repeated", repeated)
    monkeypatch.setattr(kept, "_libraries", {FakeTensor: library, FakeParameter: library, WithoutMemory: library})
    monkeypatch.setattr(kept, "_kept", {})
    monkeypatch.setattr(recent, "_recent", {})
    monkeypatch.setattr(recent, "find", lambda ids: recent._recent.get(ids))
    return library


@pytest.fixture
def guarded(fake, state):
    """Give the library a guard, which counts how often it is made and asked."""
    state.made_guards = state.asked = 0

    def kind(x):
        return type(x), x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(), x.requires_grad, state.gradients

    def guards(*tensors):
        state.made_guards += 1
        kinds = [kind(x) for x in tensors]

        def check(*others):
            state.asked += 1
            return [kind(x) for x in others] == kinds

        return check

    fake._guards, fake.guarded = guards, True
    return state


def again(a, b, out=None):
    """Call matmul as the public function does; return the result and whether the arrays were found."""
    repeat = recent.find((id(a), id(b), id(out)))
    result = repeat(a, b, out) if repeat is not None else None
    return (matmul(a, b, out), False) if result is None else (result, True)


def test_the_very_arrays_of_an_earlier_call_are_found_by_themselves(guarded):
    # Planned, looked up, and found.
    assert [again(A, B, OUT) for _ in range(4)] == [(OUT, False), (OUT, False), (OUT, True), (OUT, True)]
    assert guarded.planned[0][1:3] == (A, B)
    assert len(guarded.planned) == 1
    kind = (1, ("a", "b", "d"), 0)
    guarded.stream = 8
    A.address, before = 0x8000, A.address
    try:
        assert again(A, B, OUT) == (OUT, True)
    finally:
        A.address = before
    assert guarded.queued[-2:] == [(kind, (0x1000, 0x2000, 0x3000), 7), (kind, (0x8000, 0x2000, 0x3000), 8)]
    # Others of the same kind have the same guard.
    other = FakeTensor(0x5000)
    assert [again(other, B, OUT)[1] for _ in range(3)] == [False, True, True]
    assert guarded.made_guards == 1
    kept.forget()
    assert not again(A, B, OUT)[1]
    assert len(guarded.planned) == 2


def test_new_results_of_the_very_arrays(guarded):
    results = [again(A, B) for _ in range(4)]
    assert [found for _, found in results] == [False, False, True, True]
    assert len({result.address for result, _ in results}) == 4
    assert [addresses[2] for _, addresses, _ in guarded.queued] == [result.address for result, _ in results[1:]]


LIKE = ((4, 4), (4, 1), "float32")


@pytest.mark.parametrize(
    ("devices", "make", "used"),
    [
        (1, lambda shape, stride, dtype: FakeTensor(0x500000, shape, stride, dtype=dtype), True),
        (2, lambda shape, stride, dtype: FakeTensor(0x500000, shape, stride, dtype=dtype), False),
        (1, lambda shape, stride, dtype: FakeTensor(0x500000, shape, (1, 4), dtype=dtype), False),
        (1, lambda shape, stride, dtype: FakeTensor(0x500000, shape, stride, dtype=dtype, device=1), False),
        (1, lambda shape: None, False),
        (1, None, False),
    ],
    ids=["one GPU", "two GPUs", "other strides", "another GPU", "called otherwise", "not there"],
)
def test_the_quick_way_to_make_a_result_is_tried_first(fake, guarded, devices, make, used):
    guards = types.SimpleNamespace() if make is None else types.SimpleNamespace(_empty_strided_cuda=make)
    fake._torch._C._dynamo = types.SimpleNamespace(guards=guards)
    fake._torch.cuda = types.SimpleNamespace(device_count=lambda: devices)
    result = [again(A, B) for _ in range(3)][-1]
    assert result[1]
    assert (result[0].address == 0x500000) == used
    assert (result[0].shape, result[0].stride(), result[0].dtype) == LIKE
    assert guarded.queued[-1][1] == (A.address, B.address, result[0].address)


@pytest.mark.parametrize("out", [OUT, None], ids=["out", "no out"])
def test_arrays_that_changed_are_not_found(guarded, out):
    changes = {
        "shape": (2, 4), "dtype": "float16", "address": 0x1010, "_neg": True, "requires_grad": True, "_device": 1,
        "_stride": (1, 4),
    }  # fmt: skip
    for attribute, value in changes.items():
        a = FakeTensor(0x1000)
        for _ in range(3):
            again(a, B, out)
        assert again(a, B, out)[1]
        setattr(a, attribute, value)
        before = len(guarded.planned)
        assert not again(a, B, out)[1]
        assert len(guarded.planned) == before + 1, attribute


def test_an_output_that_moved_over_an_input_is_planned(guarded):
    out = FakeTensor(0x3000)
    for _ in range(3):
        again(A, B, out)
    for place in (0x1000, 0x2000, 0x2000 - 0x20, 0x1000 + 0x20):
        out.address = place
        before = len(guarded.planned)
        assert not again(A, B, out)[1]
        assert len(guarded.planned) == before + 1
    out.address = 0x4000
    assert again(A, B, out)[1]


def test_gradients_are_never_found(guarded):
    guarded.gradients = False
    a = FakeTensor(0x1000, grad=True)
    assert not any(again(a, B, OUT)[1] for _ in range(4))
    assert len(guarded.planned) == 1
    guarded.gradients = True
    again(a, B, OUT)
    assert len(guarded.planned) == 2


def test_a_guard_of_another_state_is_made_anew(guarded):
    guarded.gradients = False
    for _ in range(3):
        again(A, B, OUT)
    assert guarded.made_guards == 1
    guarded.gradients = True
    assert [again(A, B, OUT)[1] for _ in range(3)] == [False, True, True]
    assert guarded.made_guards == 2


def test_an_array_times_itself_gets_no_guard(guarded):
    assert not any(again(A, A, OUT)[1] for _ in range(4))
    made = guarded.made
    assert not any(again(A, A)[1] for _ in range(4))
    # One result for each call, and none for a guard.
    assert guarded.made - made == 4
    assert guarded.made_guards == 0


def test_an_array_that_is_given_twice_takes_no_guard_away(guarded):
    c = FakeTensor(0x6000)
    for _ in range(2):
        gemm(A, B, c, beta=1.0)
    (product,) = kept._kept.values()
    guard = product.again
    assert guard is not None
    for _ in range(4):
        gemm(A, B, A, beta=1.0)
    assert (product.again, guarded.made_guards) == (guard, 1)


def test_guards_are_not_made_for_ever(guarded):
    for number in range(40):
        guarded.gradients = number % 2 == 0
        again(A, B, OUT)
    assert guarded.made_guards == kept.MOST_GUARDS


def test_what_is_found_is_bounded(guarded, monkeypatch):
    monkeypatch.setattr(recent, "MOST_RECENT", 3)
    others = [FakeTensor(0x10000 * i) for i in range(1, 9)]
    for a in others * 2:
        again(a, B, OUT)
        assert len(recent._recent) <= 3
    monkeypatch.setattr(kept, "MOST_KEPT", 1)
    again(A, B, OUT)
    again(FakeTensor(0x1000, (3, 4)), B, OUT)
    assert not recent._recent


def matmul(a, b, out=None, *, out_dtype=None, precision=None, stream=None, executor=None):
    return prepared.product("matmul", a, b, None, 1, 0, out, out_dtype, precision, stream, executor)


def gemm(a, b, c=None, *, alpha=1.0, beta=0.0, out=None, bias=None):
    return prepared.product("gemm", a, b, c, alpha, beta, out, None, None, None, None, bias)


def test_the_second_call_is_not_planned(state):
    assert matmul(A, B, OUT) is OUT
    assert matmul(A, B, OUT) is OUT
    state.stream = 9
    other = FakeTensor(0x7000)
    assert matmul(FakeTensor(0x5000), FakeTensor(0x6000), other) is other
    assert len(state.planned) == 1
    kind = (1, ("a", "b", "d"), 0)
    assert state.queued == [(kind, (0x1000, 0x2000, 0x3000), 7), (kind, (0x5000, 0x6000, 0x7000), 9)]


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
    "a result on another stream": {"stream": 3, "out": None},
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


@pytest.fixture
def retained(monkeypatch):
    """Return what is kept alive for a stream."""
    kept_alive = []
    monkeypatch.setattr(
        "gemmule.runtime.retain.retain", lambda what, ordinal, stream: kept_alive.append((what, ordinal, stream))
    )
    return kept_alive


def test_a_stream_that_is_named(state, retained):
    for stream in (3, types.SimpleNamespace(cuda_stream=4), 5):
        assert matmul(A, B, OUT, stream=stream) is OUT
    assert len(state.planned) == 1
    assert [stream for _, _, stream in state.queued] == [4, 5]
    # PyTorch does not know of the other stream's work.
    assert retained == [(((A, B, None, None), OUT), 0, stream) for stream in (4, 5)]
    with pytest.raises(ArgumentError, match="stream of type str"):
        matmul(A, B, OUT, stream="fast")


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
    monkeypatch.setattr(kept, "MOST_KEPT", 3)
    for rows in (1, 2, 3, 4):
        matmul(FakeTensor(0x1000, (rows, 4)), B, OUT)
    assert len(kept._kept) == 3
    matmul(FakeTensor(0x1000, (4, 4)), B, OUT)
    assert len(state.planned) == 4
    matmul(FakeTensor(0x1000, (1, 4)), B, OUT)
    assert len(state.planned) == 5
    kept.forget()
    matmul(FakeTensor(0x1000, (4, 4)), B, OUT)
    assert len(state.planned) == 6


def test_reach():
    assert reach_of((3, 4), (16, 4), 4) == (0, 48)
    assert reach_of((3, 4), (-16, 4), 4) == (-32, 16)
    assert reach_of((3, 4), (0, 8), 4) == (0, 28)


def test_usual_scalars():
    assert usual_scalars(1.0, 0)
    assert not usual_scalars(True, 0.0)
    assert not usual_scalars(1.0, np.float64(1.0))


def test_other_arrays_are_not_known(state, monkeypatch):
    libraries = {}
    monkeypatch.setattr(kept, "_libraries", libraries)
    for kind in (np.ndarray, *[type(f"Array{number}", (), {"device": "cpu"}) for number in range(100)]):
        matmul(np.ndarray(1) if kind is np.ndarray else kind(), B, OUT)
    assert libraries[np.ndarray] is None
    assert len(libraries) == kept._MOST_TYPES
    assert len(state.planned) == 101
    assert known_arrays.known_library(np.ndarray) is None
    assert known_arrays.known_library(int) is None
