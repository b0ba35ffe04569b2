"""The very arrays of an earlier call are found by themselves, on tensors that stand in for a GPU's."""

from __future__ import annotations

import types

import pytest

from gemmule.api.calls.call_cache import CALLS
from support.fakes import planners
from support.fakes.tensors import OUT, A, B, FakeTensor, again, fake, gemm, guarded, state

__all__ = ["fake", "guarded", "state"]


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
    CALLS.forget()
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


def test_an_array_times_itself_is_guarded_once(guarded):
    assert [again(A, A, OUT)[1] for _ in range(4)] == [False, False, True, True]
    made = guarded.made
    assert [again(A, A)[1] for _ in range(4)] == [False, False, True, True]
    # Those that are found are made from A, and none for a guard.
    assert guarded.made - made == 2
    assert guarded.made_guards == 2
    # What is known of one array says nothing of another that stands for B.
    assert [again(A, B, OUT)[1] for _ in range(3)] == [False, False, True]
    assert guarded.made_guards == 3


def test_an_array_that_is_given_twice_takes_no_guard_away(guarded):
    c = FakeTensor(0x6000)
    for _ in range(2):
        gemm(A, B, c, beta=1.0)
    (product,) = CALLS.by_description.values()
    guard = product.replays[False]
    assert guard is not None
    for _ in range(4):
        gemm(A, B, A, beta=1.0)
    assert (product.replays[False], guarded.made_guards) == (guard, 1)


def test_guards_are_not_made_for_ever(guarded):
    for number in range(40):
        guarded.gradients = number % 2 == 0
        again(A, B, OUT)
    assert guarded.made_guards == CALLS.MOST_GUARDS


def test_what_is_found_is_bounded(guarded, monkeypatch):
    planners.limited(monkeypatch, MOST_REPLAYS=3)
    others = [FakeTensor(0x10000 * i) for i in range(1, 9)]
    for a in others * 2:
        again(a, B, OUT)
        assert len(CALLS.by_identity) <= 3
    planners.limited(monkeypatch, MOST_CALLS=1)
    again(A, B, OUT)
    kept = set(CALLS.by_identity)
    again(FakeTensor(0x1000, (3, 4)), B, OUT)
    # An eviction leaves the replays of other calls.
    assert len(CALLS.by_description) == 1
    assert kept <= set(CALLS.by_identity)
