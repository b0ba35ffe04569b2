"""Memory that is taken again and again: what the driver is asked, without a driver."""

from __future__ import annotations

import enum
import types

import pytest

from gemmule.core.errors import DriverError
from gemmule.runtime import driver, memory


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_VALUE = 1


@pytest.fixture
def calls():
    return []


@pytest.fixture
def fake(monkeypatch, calls):
    """A driver, and the longer way, which write down what they are asked."""
    state = types.SimpleNamespace(
        context=7, asked=Result.CUDA_SUCCESS, taken=Result.CUDA_SUCCESS, given=Result.CUDA_SUCCESS
    )

    def take(nbytes, stream):
        calls.append(("take", nbytes, stream))
        return state.taken, 0x5000

    def give(address, stream):
        calls.append(("give", address, stream))
        return (state.given,)

    bindings = types.SimpleNamespace(
        CUresult=Result, cuCtxGetCurrent=lambda: (state.asked, state.context), cuMemAllocAsync=take,
        cuMemFreeAsync=give, cuGetErrorString=lambda status: (Result.CUDA_SUCCESS, b"fake"),
    )  # fmt: skip

    class Buffer:
        address = 0x9000

        def __init__(self, nbytes, ordinal, stream):
            calls.append(("buffer", nbytes, ordinal, stream))

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            calls.append(("freed",))

    monkeypatch.setattr(memory, "driver", lambda: bindings)
    monkeypatch.setattr(driver, "driver", lambda: bindings)
    monkeypatch.setattr(memory, "primary_context", lambda ordinal: 7 + ordinal)
    monkeypatch.setattr(memory, "DeviceBuffer", Buffer)
    return state


def use(calls):
    return lambda address: calls.append(("use", address))


def test_it_is_taken_used_and_given_back(fake, calls):
    lent = memory.LentMemory(256, 0)
    for stream in (3, 4):
        lent.lend(use(calls), stream)
        assert calls == [("take", 256, stream), ("use", 0x5000), ("give", 0x5000, stream)]
        calls.clear()


@pytest.mark.parametrize(
    ("attribute", "value"), [("context", 8), ("context", 0), ("asked", Result.CUDA_ERROR_INVALID_VALUE)]
)
def test_another_context_is_current(fake, calls, attribute, value):
    setattr(fake, attribute, value)
    memory.LentMemory(256, 0).lend(use(calls), 3)
    assert calls == [("buffer", 256, 0, 3), ("use", 0x9000), ("freed",)]


def test_too_little_memory_is_said_by_the_longer_way(fake, calls):
    fake.taken = Result.CUDA_ERROR_OUT_OF_MEMORY
    memory.LentMemory(256, 0).lend(use(calls), 3)
    assert calls == [("take", 256, 3), ("buffer", 256, 0, 3), ("use", 0x9000), ("freed",)]


def test_it_is_given_back_whatever_happens(fake, calls):
    def fails(address):
        raise KeyError(address)

    with pytest.raises(KeyError):
        memory.LentMemory(256, 0).lend(fails, 3)
    assert calls == [("take", 256, 3), ("give", 0x5000, 3)]


def test_memory_that_cannot_be_given_back(fake, calls):
    fake.given = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError, match="cuMemFreeAsync failed with CUDA_ERROR_INVALID_VALUE"):
        memory.LentMemory(256, 0).lend(use(calls), 3)
