"""Memory that is taken again and again: what the driver is asked, without a driver."""

from __future__ import annotations

import pytest

from gemmule.core.errors import DriverError
from gemmule.runtime import memory
from support.fakes.cuda import CONTEXT, FakeCuda, Result, installed


@pytest.fixture
def calls():
    return []


class Memory(FakeCuda):
    """Writes down what it is asked, with the GPU whose context was made current for it."""

    def __init__(self, calls):
        super().__init__()
        self.calls, self.asked, self.given = calls, Result.CUDA_SUCCESS, Result.CUDA_SUCCESS
        self.taken = []

    def cuCtxGetCurrent(self):
        asked, self.asked = self.asked, Result.CUDA_SUCCESS
        return asked, self.context

    def cuMemAllocAsync(self, nbytes, stream):
        self.calls.append(("take", nbytes, stream, *self.entered[-1:]))
        return self.taken.pop() if self.taken else Result.CUDA_SUCCESS, 0x5000

    def cuMemFreeAsync(self, address, stream):
        self.calls.append(("give", address, stream, *self.entered[-1:]))
        return (self.given,)


@pytest.fixture
def fake(calls):
    with installed(Memory(calls)) as fake:
        yield fake


def use(calls):
    return lambda address: calls.append(("use", address))


def test_it_is_taken_used_and_given_back(fake, calls):
    lent = memory.LentMemory(256, 0)
    for stream in (3, 4):
        lent.lend(use(calls), stream)
        assert calls == [("take", 256, stream), ("use", 0x5000), ("give", 0x5000, stream)]
        calls.clear()


@pytest.mark.parametrize(("attribute", "value"), [("context", CONTEXT + 1), ("context", 0)])
def test_another_context_is_current(fake, calls, attribute, value):
    setattr(fake, attribute, value)
    memory.LentMemory(256, 0).lend(use(calls), 3)
    assert calls == [("take", 256, 3, 0), ("use", 0x5000), ("give", 0x5000, 3, 0)]
    assert set(fake.entered) == {0}


def test_the_context_is_unknown(fake, calls):
    fake.asked = Result.CUDA_ERROR_INVALID_VALUE
    memory.LentMemory(256, 0).lend(use(calls), 3)
    assert calls == [("take", 256, 3), ("use", 0x5000), ("give", 0x5000, 3)]
    assert fake.asked == Result.CUDA_SUCCESS


def test_too_little_memory_is_said_by_the_longer_way(fake, calls):
    fake.taken = [Result.CUDA_ERROR_OUT_OF_MEMORY]
    memory.LentMemory(256, 0).lend(use(calls), 3)
    assert calls == [("take", 256, 3), ("take", 256, 3), ("use", 0x5000), ("give", 0x5000, 3)]


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
