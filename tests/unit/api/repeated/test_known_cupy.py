"""Products of CuPy's arrays that were computed before, on arrays that stand in for a GPU's."""

from __future__ import annotations

import gc
import itertools
import types

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.core.errors import ArgumentError
from gemmule.runtime.arrays.cupy_arrays import CupyArrays, external_stream
from support.fakes import call_caches

NEW = itertools.count(0x900000, 0x1000)


class FakeArray:
    """What is asked of an array of 4 x 4 float32."""

    def __init__(self, address, shape=(4, 4), strides=(16, 4), device=0):
        self.data = types.SimpleNamespace(ptr=address, device_id=device)
        self.dtype, self.shape, self.strides, self.itemsize = np.dtype("float32"), shape, strides, 4


class Subclass(FakeArray):
    pass


@pytest.fixture(autouse=True)
def state(monkeypatch):
    """A library, a planner and a GPU that write down what they are asked."""
    state = types.SimpleNamespace(device=0, devices=1, stream=7, planned=[], queued=[], described=0)

    class Stream:
        def __init__(self, ptr, device):
            self.ptr, self.of = ptr, device

        def __enter__(self):
            self.before, state.stream = state.stream, self.ptr

        def __exit__(self, *exc):
            state.stream = self.before

    cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(getDevice=lambda: state.device, getDeviceCount=lambda: state.devices),
        get_current_stream=lambda device: Stream(state.stream + 100 * device, device),
        Stream=types.SimpleNamespace(from_external=lambda handle: Stream(handle.__cuda_stream__()[1], state.device)),
    )

    def empty(shape, dtype):
        made = FakeArray(next(NEW), shape)
        made.made_on = state.stream
        return made

    cupy = types.SimpleNamespace(ndarray=FakeArray, cuda=cuda, empty=empty)

    def plan_product(operation, a, b, **options):
        out = options["out"]
        if not isinstance(b, FakeArray):
            raise ArgumentError("refused")
        state.planned.append((a, b, out))
        result = empty((4, 4), "float32") if out is None else out
        given = {"a": a, "b": b} | ({"c": options["c"]} if options.get("beta") else {})
        places = {role: (role, x.data.ptr) for role, x in given.items()}
        plan = {"executor": "gpu", "choice": "choice", "problem": "problem", "places": places}
        return types.SimpleNamespace(**plan, product=None, execute=lambda: result)

    def repeated(problem, choice, operands, addresses, ordinal):
        return lambda addresses, stream: state.queued.append((addresses, stream))

    libraries = {Subclass: None}
    call_caches.retained(monkeypatch)

    def library(devices=1):
        state.devices = devices
        made = CupyArrays(cupy)
        describe = made.describe

        def described(*arguments):
            state.described += 1
            return describe(*arguments)

        made.describe = described
        libraries[FakeArray] = made

    state.library = library
    library()
    with call_caches.scripted(monkeypatch, plan_product, repeated, libraries):
        yield state


def test_the_very_arrays_are_found_by_themselves(state):
    a, b, out = FakeArray(0x1000), FakeArray(0x2000), FakeArray(0x3000)
    for number in range(6):
        assert gm.matmul(a, b, out=out) is out
        # Planned, found by what it is known by, once more when the arrays are known, and from then on by themselves.
        assert state.described == min(number + 1, 3)
    assert len(state.planned) == 1
    state.stream = 9
    gm.matmul(a, b, out=out)
    assert state.queued[-2:] == [((0x1000, 0x2000, 0x3000), 7), ((0x1000, 0x2000, 0x3000), 9)]


def test_results_are_made(state):
    a, b = FakeArray(0x1000), FakeArray(0x2000)
    results = [gm.matmul(a, b) for _ in range(5)]
    assert state.described == 3
    assert len({id(x) for x in results}) == 5
    assert [addresses for addresses, _ in state.queued] == [(0x1000, 0x2000, x.data.ptr) for x in results[1:]]
    other = gm.matmul(a, b, stream=4)
    assert (other.made_on, state.stream, len(state.planned)) == (4, 7, 1)


def test_c_and_in_place(state):
    a, b, c, out = (FakeArray(address) for address in (0x1000, 0x2000, 0x3000, 0x4000))
    for _ in range(4):
        gm.gemm(a, b, c, beta=1.0, out=out)
    assert state.queued[-1] == ((0x1000, 0x2000, 0x3000, 0x4000), 7)
    described = state.described
    for _ in range(4):
        gm.gemm(a, b, c, beta=1.0, out=c)
    assert state.described == described + 3
    assert state.queued[-1] == ((0x1000, 0x2000, 0x3000, 0x3000), 7)
    assert len(state.planned) == 2


def test_a_shape_that_was_set(state):
    a, b, out = FakeArray(0x1000), FakeArray(0x2000), FakeArray(0x3000)
    for _ in range(4):
        gm.matmul(a, b, out=out)
    described = state.described
    a.shape, a.strides = (2, 8), (32, 4)
    gm.matmul(a, b, out=out)
    assert state.described == described + 1
    assert len(state.planned) == 2


def test_another_array_with_the_identity_of_one_that_is_gone(state):
    a, b, out = FakeArray(0x1000), FakeArray(0x2000), FakeArray(0x3000)
    for _ in range(4):
        gm.matmul(a, b, out=out)
    (key,) = CALLS.by_identity
    again = CALLS.by_identity[key]
    other = FakeArray(0x7000)
    assert again(other, b, out) is None
    queued = len(state.queued)
    del a
    gc.collect()
    assert again(other, b, out) is None
    assert len(state.queued) == queued
    # What was found in its place is as good as new.
    CALLS.by_identity[id(other), id(b), id(out)] = again
    for _ in range(3):
        gm.matmul(other, b, out=out)
        assert state.queued[-1][0] == (0x7000, 0x2000, 0x3000)


@pytest.mark.parametrize("name", ["overlap", "another GPU is current", "another type", "not aligned"])
def test_what_is_unusual_is_always_looked_at(state, name):
    a, b, out = FakeArray(0x1000), FakeArray(0x2000), FakeArray(0x3000)
    if name == "overlap":
        out = FakeArray(0x1000)
    if name == "another GPU is current":
        state.device = 1
    if name == "another type":
        b = Subclass(0x2000)
    if name == "not aligned":
        a = FakeArray(0x1004)
    for number in range(5):
        gm.matmul(a, b, out=out)
        assert state.described == number + 1
    # Only alignment is a matter of what it is known by.
    assert len(state.planned) == (1 if name == "not aligned" else 5)


def test_with_several_gpus_results_are_made_where_the_arrays_are(state):
    state.library(devices=2)
    a, b = FakeArray(0x1000), FakeArray(0x2000)
    for number in range(5):
        gm.matmul(a, b)
        assert state.described == number + 1
    out = FakeArray(0x3000)
    for _ in range(5):
        gm.matmul(a, b, out=out)
    assert state.described == 8
    # The current stream is that of the arrays' GPU.
    state.device, state.stream = 1, 8
    gm.matmul(a, b, out=out)
    assert state.queued[-1] == ((0x1000, 0x2000, 0x3000), 8)


def test_streams_where_cupy_does_not_know_the_protocol():
    old = types.SimpleNamespace(cuda=types.SimpleNamespace(Stream=object, ExternalStream=lambda *given: given))
    assert external_stream(old, 11, 2) == (11, 2)


def test_one_memory_is_another_product_than_two(state):
    x = FakeArray(0x1000)
    for _ in range(3):
        for address in (0x1000, 0x2000):
            gm.matmul(x, FakeArray(address, strides=(4, 16)))
    assert [b.data.ptr for _, b, _ in state.planned] == [0x1000, 0x2000]
    assert [addresses[1] for addresses, _ in state.queued] == [0x1000, 0x2000] * 2
