"""Threads that copy pieces of arrays: each piece once, all at return, and still there after an error."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from gemmule.runtime.copy_threads import CopyThreads, _Work
from support.fakes.cuda import installed
from support.fakes.device_memory import FakeMemory


@pytest.fixture(params=[0, 1, 5])
def threads(request):
    with installed(FakeMemory()):
        made = CopyThreads(0, request.param)
        yield made
        made.close()
        assert not any(thread.is_alive() for thread in made._threads)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 200])
def test_each_piece_is_copied_once_before_the_call_returns(threads, count):
    for _ in range(20):
        copied = []
        threads.run(lambda piece, copied=copied: (time.sleep(1e-6), copied.append(piece)), range(count))
        assert sorted(copied) == list(range(count))


def test_an_error_is_the_callers_once_the_others_are_copied(threads):
    copied = []

    def copy(piece):
        if piece == 3:
            raise ValueError("piece 3")
        copied.append(piece)

    for _ in range(10):
        copied.clear()
        with pytest.raises(ValueError, match="piece 3"):
            threads.run(copy, range(8))
        assert sorted(copied) in ([0, 1, 2, 4, 5, 6, 7], [0, 1, 2])
    threads.run(copied.append, [8])
    assert copied[-1] == 8


def test_no_piece_outlives_a_call_that_fails():
    class Piece:
        pass

    def copy(piece):
        raise ValueError("each")

    with installed(FakeMemory()):
        made, pieces = CopyThreads(0, 2), [Piece() for _ in range(9)]
        left = [weakref.ref(piece) for piece in pieces]
        with pytest.raises(ValueError, match="each"):
            made.run(copy, pieces)
        del pieces
        until = time.monotonic() + 5
        # The traceback and what raised hold each other.
        while gc.collect() >= 0 and any(one() is not None for one in left) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(one() is not None for one in left)
        made.close()


def test_several_threads_copy_at_once():
    with installed(FakeMemory()):
        made, together = CopyThreads(0, 2), threading.Barrier(3, timeout=20)
        # The caller's thread is one of them.
        made.run(lambda piece: together.wait(), range(3))
        made.close()


def test_two_callers_share_the_threads():
    with installed(FakeMemory()):
        made, sums = CopyThreads(0, 2), [[], []]

        def call(mine):
            for _ in range(50):
                made.run(mine.append, range(9))
                assert len(mine) % 9 == 0

        callers = [threading.Thread(target=call, args=(mine,)) for mine in sums]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        made.close()
    assert [sorted(mine) for mine in sums] == [sorted(list(range(9)) * 50)] * 2


@pytest.mark.parametrize("held", [False, True], ids=["before the lock is held", "after"])
def test_an_interrupt_waits_for_the_last_piece_and_no_longer(held):
    work, copied = _Work(lambda piece: (time.sleep(0.05), copied.append(piece)), range(2)), []
    lock, interrupts = work._ended, iter([KeyboardInterrupt])

    class Interrupted:
        """The lock of a thread that a signal reaches while it waits, or once it has it."""

        release = lock.release

        def acquire(self):
            interrupt = next(interrupts, None)
            if interrupt is None or held:
                assert lock.acquire(timeout=5)
            if interrupt is not None:
                raise interrupt

    work._ended = Interrupted()
    helper = threading.Thread(target=work.help)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert copied == [0, 1]
    helper.join()
