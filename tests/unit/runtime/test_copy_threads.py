"""Threads that copy pieces of arrays: each piece once, all at return, and still there after an error."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import weakref

import pytest

from gemmule.runtime import copy_threads
from gemmule.runtime.copy_threads import CopyThreads
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
        until = time.monotonic() + 60
        # The traceback and what raised hold each other.
        while gc.collect() >= 0 and any(one() is not None for one in left) and time.monotonic() < until:
            time.sleep(0.01)
        assert not any(one() is not None for one in left)
        made.close()


def test_several_threads_copy_at_once():
    with installed(FakeMemory()):
        made, together = CopyThreads(0, 2), threading.Barrier(3, timeout=60)
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


def interrupted(call, at):
    """Call a function, interrupt it at an instruction of its module, and return whether it was."""
    left = itertools.count(at, -1)

    def trace(frame, event, argument):
        if frame.f_code.co_filename != copy_threads.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(left) == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_instruction_leaves_no_copy_behind():
    begun, ended = [], []

    def copy(piece):
        begun.append(piece)
        time.sleep(1e-3)
        ended.append(piece)

    with installed(FakeMemory()):
        made = CopyThreads(0, 2)
        for at in itertools.count():
            if not interrupted(lambda: made.run(copy, range(4)), at):
                break
            assert len(begun) == len(ended), at
            time.sleep(1e-4)
            assert len(begun) == len(ended), at
        assert at > 50
        made.run(copy, range(4))
        assert sorted(ended[-4:]) == [0, 1, 2, 3]
        made.close()
