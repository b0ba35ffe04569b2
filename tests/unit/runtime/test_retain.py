"""What is kept alive for work that a library does not know of, with a driver that says when the work is done."""

from __future__ import annotations

import atexit
import gc
import threading
import time
import types
import weakref

import pytest

from gemmule.runtime import retain
from support.fakes.cuda import FakeCuda, Result, installed


class Fake(FakeCuda):
    """Events are numbers; each is told the stream that it was recorded on last."""

    CUevent_flags = types.SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstreamCaptureStatus = types.SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=0)
    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self):
        super().__init__()
        self.created, self.destroyed, self.recorded, self.asked = 0, [], {}, 0
        self.done, self.capturing, self.broken, self.picky = set(), False, False, False
        self.modes, self.contexts, self.come = [], [], set()

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.modes.append((threading.current_thread().name, mode))
        return Result.CUDA_SUCCESS, 0

    def cuStreamIsCapturing(self, stream):
        known = self.context or self.picky
        return (Result.CUDA_SUCCESS if known else Result.CUDA_ERROR_INVALID_CONTEXT), int(self.capturing)

    def cuEventCreate(self, flags):
        assert flags == 2
        self.created += 1
        return Result.CUDA_SUCCESS, self.created

    def cuEventRecord(self, event, stream):
        self.recorded[event] = stream
        return (Result.CUDA_SUCCESS if self.context or not self.picky else Result.CUDA_ERROR_INVALID_CONTEXT,)

    def cuCtxSetCurrent(self, context):
        self.contexts.append((threading.current_thread().name, context))
        return (Result.CUDA_SUCCESS,)

    def cuEventQuery(self, event):
        self.asked += 1
        if self.broken:
            return (Result.CUDA_ERROR_ILLEGAL_ADDRESS,)
        if event in self.come:
            return (Result.CUDA_SUCCESS,)
        return (Result.CUDA_SUCCESS if self.recorded[event] in self.done else Result.CUDA_ERROR_NOT_READY,)

    def cuEventDestroy(self, event):
        self.destroyed.append(event)
        return (Result.CUDA_SUCCESS,)


class Array:
    pass


@pytest.fixture
def fake():
    with installed(Fake()) as fake:
        retain._keeper.cache_clear()
        yield fake
        # The thread goes before the fake does.
        keeper = retain._keeper()
        keeper.end()
        atexit.unregister(keeper.end)
        retain._keeper.cache_clear()


def wait_until(true):
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come to pass in a minute"
        time.sleep(1e-3)


def kept_array(stream, ordinal=0):
    array = Array()
    retain.retain((array,), ordinal, stream)
    return weakref.ref(array)


def test_it_is_kept_until_the_work_is_done_and_then_let_go(fake):
    first, second = kept_array(5), kept_array(5)
    asked = fake.asked
    wait_until(lambda: fake.asked > asked + 2)
    gc.collect()
    assert None not in (first(), second())
    fake.done.add(5)
    wait_until(lambda: first() is second() is None)
    # It sleeps where there is nothing to wait for, and wakes again.
    wait_until(lambda: not retain._keeper()._looking)
    assert kept_array(5) is not None
    third = kept_array(6)
    fake.done.add(6)
    wait_until(lambda: third() is None)


def test_one_stream_does_not_wait_for_another(fake):
    slow, quick = kept_array(5), kept_array(6)
    fake.done.add(6)
    wait_until(lambda: quick() is None)
    assert slow() is not None


@pytest.mark.parametrize("done", [0, 1, 3, 4, 6, 7])
def test_those_that_have_come_are_let_go_and_no_more(fake, done):
    arrays = [kept_array(5) for _ in range(7)]
    asked = fake.asked
    fake.come.update(range(1, done + 1))
    wait_until(lambda: all(array() is None for array in arrays[:done]) and (done == 7 or fake.asked > asked + 8))
    assert not any(array() is None for array in arrays[done:])


def test_an_event_that_comes_before_one_in_front_tells_nothing_of_it(fake):
    slow, quick = kept_array(2), kept_array(2)
    fake.come.add(2)
    asked = fake.asked
    wait_until(lambda: fake.asked > asked + 4)
    gc.collect()
    assert slow() is not None
    fake.come.add(1)
    wait_until(lambda: slow() is quick() is None)


def test_the_thread_works_in_the_context_of_each_gpu(fake):
    for ordinal in (0, 1):
        array = kept_array(5 + ordinal, ordinal)
        fake.done.add(5 + ordinal)
        wait_until(lambda array=array: array() is None)
    assert fake.contexts == [("gemmule-retain", 0xC0), ("gemmule-retain", 0xC1)]


def test_events_are_used_again(fake):
    fake.done.add(5)
    for _ in range(20):
        array = kept_array(5)
        wait_until(lambda array=array: array() is None)
    assert fake.created == 1
    fake.done.clear()
    arrays = [kept_array(5) for _ in range(retain.MOST_EVENTS + 10)]
    fake.done.add(5)
    wait_until(lambda: all(array() is None for array in arrays))
    wait_until(lambda: len(fake.destroyed) == 10)


def test_many_calls_do_not_wait_for_the_next_look(fake, monkeypatch):
    monkeypatch.setattr(retain, "PAUSE", 60.0)
    waits = kept_array(5)
    wait_until(lambda: fake.asked)
    fake.done.add(6)
    arrays = [kept_array(6) for _ in range(retain.MANY)]
    wait_until(lambda: arrays[0]() is None)
    fake.done.add(5)
    kept = [kept_array(6) for _ in range(retain.MANY)]
    wait_until(lambda: waits() is None)
    assert kept


def test_what_is_captured_is_its_graphs_affair(fake):
    fake.capturing = True
    array = kept_array(5)
    gc.collect()
    assert array() is None
    assert not fake.recorded


def test_another_context_is_current(fake):
    fake.context = 0
    array = kept_array(5, ordinal=1)
    assert fake.entered == [1]
    fake.done.add(5)
    wait_until(lambda: array() is None)


def test_an_event_that_could_not_be_recorded_is_recorded_where_it_can_be(fake):
    fake.context, fake.picky = 0, True
    fake.done.add(0)
    for _ in range(5):
        array = kept_array(0)
        wait_until(lambda array=array: array() is None)
    assert fake.created == 1


def test_a_broken_context_keeps_nothing(fake):
    array = kept_array(5)
    fake.broken = True
    wait_until(lambda: array() is None)


def test_the_thread_breaks_no_capture(fake):
    kept_array(5)
    assert ("gemmule-retain", 2) in fake.modes


def test_the_thread_ends_with_the_process(fake):
    array = kept_array(5)
    keeper = retain._keeper()
    wait_until(lambda: fake.asked)
    keeper.end()
    assert not keeper._thread.is_alive()
    assert array() is not None
