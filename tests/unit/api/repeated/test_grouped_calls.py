"""Grouped calls are found by their description, on tensors that stand in for a GPU's."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.dispatch.choices.choice_cache import generation
from support.fakes.tensors import FakeTensor, fake, guarded, state

__all__ = ["fake", "guarded", "state"]


def given(first=0x100000):
    a, b = FakeTensor(first, (4, 4)), FakeTensor(first + 0x1000, (2, 4, 4))
    return a, b, FakeTensor(first + 0x2000, (2,), dtype="int32")


@pytest.fixture
def cached(guarded, fake):
    """A call that was planned, and what it queues."""
    queued = []
    a, b, ends = given()
    key, _, _ = fake.describe(a, b, (ends, None, None), ("grouped_gemm", "offsets", None, None, None))
    result = FakeTensor(0x900000, (4, 4))
    CALLS.add(fake, key, lambda addresses, stream: queued.append((addresses, stream)), given(), result, generation())
    return queued


def test_other_arrays_of_the_description_are_launched(cached, guarded):
    for turn in range(4):
        arrays = given(0x200000 + 0x10000 * turn)
        got = gm.grouped_gemm(*arrays)
        assert cached[-1] == ((*(x.address for x in arrays), got.address), guarded.stream)
        assert got.shape == (4, 4)
    # The first was described, the others let through by a guard.
    assert guarded.made_guards == 1
    assert guarded.asked == 3


def test_what_differs_is_planned(cached):
    """Here the plan refuses tensors that are none; what is not found gets there."""
    a, b, ends = given()
    others = ({"epilogue": "relu"}, {"bias": FakeTensor(0x700000, (2, 4))}, {"out_dtype": "float32"}, {"out": a})
    for options in others:
        with pytest.raises(gm.GemmuleError):
            gm.grouped_gemm(a, b, ends, **options)
    # Numbers of matrices have the place of ends.
    with pytest.raises(gm.GemmuleError):
        gm.grouped_gemm(a, b, matrices=ends)
    with pytest.raises(gm.GemmuleError):
        gm.grouped_gemm(FakeTensor(0x100000, (8, 4)), b, ends)
    CALLS.forget()
    with pytest.raises(gm.GemmuleError):
        gm.grouped_gemm(a, b, ends)
    assert cached == []
