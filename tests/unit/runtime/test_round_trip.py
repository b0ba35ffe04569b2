"""Host arrays on their way to a GPU and back: whole, in order, and in bounded pinned memory."""

from __future__ import annotations

import itertools
import mmap
import platform
import sys
import threading

import numpy as np
import pytest

from gemmule.runtime import round_trip
from gemmule.runtime.round_trip import Link, Staging
from support.fakes.cuda import installed
from support.fakes.device_memory import FakeMemory


@pytest.fixture
def gpu():
    """Install a driver whose device memory is the host's."""
    with installed(FakeMemory()) as fake:
        yield fake


def layouts():
    x = np.arange(30 * 50, dtype="i4").reshape(30, 50)
    wide = np.arange(3 * 4001, dtype="i4").reshape(3, 4001)
    return {
        "rows": x, "columns": np.asfortranarray(x), "part": x[3:, 5:21], "reversed": x[::-1, ::-2], "one row": x[:1],
        "repeated": np.broadcast_to(x[0], (7, 50)), "foreign": x.astype(">i4"), "batch": x.reshape(2, 3, 5, 50),
        "strided batch": x.reshape(2, 15, 50)[:, ::2, 1:], "wide": wide, "wide part": wide[:, 1:], "empty": x[:0],
        "narrow": x.astype("i1"),
    }  # fmt: skip


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("chunks", [2, 3, 7])
@pytest.mark.parametrize("layout", layouts())
def test_there_and_back(gpu, threads, chunks, layout, monkeypatch):
    monkeypatch.setattr(round_trip, "CHUNK_BYTES", 1024)
    x = layouts()[layout]
    link, staging = Link(0), Staging(0, nbytes=chunks * 1024, chunk=1024, threads=threads)
    target = np.zeros_like(x) if x.flags.c_contiguous else np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    source = x.copy()
    with link.room(x.nbytes) as address:
        link.send([(source, address)], staging)
        source[...] = 0
        link.receive(target, address, staging)
    assert (target == x).all()
    assert x.nbytes == 0 or gpu.copies["in"] >= -(-x.nbytes // 1024)
    staging.close()
    assert len(gpu.held) == 1


def test_no_thread_is_left_where_there_is_no_pinned_memory(gpu, monkeypatch):
    """Every call tries again, so that threads of each would add up."""

    def call(name, *arguments):
        if name == "cuMemAllocHost":
            raise MemoryError("no pinned memory")
        return round_trip_call(name, *arguments)

    round_trip_call, before = round_trip.call, threading.active_count()
    monkeypatch.setattr(round_trip, "call", call)
    with pytest.raises(MemoryError, match="pinned"):
        Staging(0, threads=3)
    assert threading.active_count() == before


def test_chunks_are_not_filled_before_they_have_left(gpu):
    # The fake copies only when it is waited for.
    x, y = (np.full(4096, value, np.uint8) for value in (1, 2))
    link, staging, back = Link(0), Staging(0, nbytes=2048, chunk=1024, threads=0), np.empty(8192, np.uint8)
    with link.room(8192) as address:
        link.send([(x, address)], staging)
        link.send([(y, address + 4096)], staging)
        link.receive(back, address, staging)
    assert (back == np.repeat([1, 2], 4096)).all()


def test_a_copy_that_fails_fails_once(gpu):
    link, staging = Link(0), Staging(0, nbytes=2048, chunk=1024, threads=2)
    x, back = np.arange(4096, dtype=np.uint8), np.zeros(4096, np.uint8)
    back.flags.writeable = False
    with link.room(4096) as address:
        link.send([(x, address)], staging)
        with pytest.raises(ValueError, match="read-only"):
            link.receive(back, address, staging)
        back = np.zeros(4096, np.uint8)
        for _ in range(3):
            try:
                link.receive(back, address, staging)
            except ValueError:
                continue
        assert (back == x).all()
    staging.close()


def test_a_copy_that_fails_spoils_no_later_one(gpu):
    # The fake copies only when it is waited for, which what failed has not done for its last pieces.
    link, staging = Link(0), Staging(0, nbytes=8192, chunk=1024, threads=0)
    x, back = np.full(4096, 1, np.uint8), np.zeros(4096, np.uint8)
    back.flags.writeable = False
    with link.room(8192) as address:
        link.send([(x, address)], staging)
        with pytest.raises(ValueError, match="read-only"):
            link.receive(back, address, staging)
        back = np.zeros(4096, np.uint8)
        link.send([(2 * x, address + 4096)], staging)
        link.receive(back, address + 4096, staging)
    assert (back == 2).all()


@pytest.mark.parametrize("name", ["cuMemcpyDtoHAsync", "cuEventRecord"])
@pytest.mark.parametrize("number", range(6))
def test_an_interrupt_while_copies_are_queued_spoils_no_later_one(gpu, monkeypatch, name, number):
    """What was queued still comes into the pinned memory that the next call fills."""

    def call(called, *arguments):
        found = round_trip_call(called, *arguments)
        if called == name and next(left) == 0:
            raise KeyboardInterrupt
        return found

    link, staging = Link(0), Staging(0, nbytes=8192, chunk=1024, threads=0)
    x, back = np.full(8192, 1, np.uint8), np.zeros(8192, np.uint8)
    with link.room(16384) as address:
        link.send([(x, address)], staging)
        round_trip_call, left = round_trip.call, itertools.count(number, -1)
        with monkeypatch.context() as patched:
            patched.setattr(round_trip, "call", call)
            with pytest.raises(KeyboardInterrupt):
                link.receive(back, address, staging)
        link.send([(2 * x, address + 8192)], staging)
        link.receive(back, address + 8192, staging)
    assert (back == 2).all()


def test_arrays_of_one_call_lie_apart(gpu):
    sources = [np.full((5, 333 + place), place, dtype) for place, dtype in enumerate(("u1", "f4", "f8", "i2"))]
    link, staging = Link(0), Staging(0, nbytes=16384, chunk=1024, threads=3)
    begins = np.cumsum([0, *[x.nbytes for x in sources]])
    with link.room(int(begins[-1])) as address:
        copies = [(x[:, ::-1], address + int(begin)) for x, begin in zip(sources, begins[:-1], strict=True)]
        link.send(copies, staging)
        for x, (_, begin) in zip(sources, copies, strict=True):
            back = np.empty_like(x)
            link.receive(back, begin, staging)
            assert np.array_equal(back, x)


def test_pinned_arrays_are_copied_at_once(gpu):
    x, back = np.arange(5 << 20, dtype=np.uint8), np.empty(5 << 20, np.uint8)
    gpu.pinned |= {(x.ctypes.data, x.nbytes), (back.ctypes.data, back.nbytes)}
    link = Link(0)
    with link.room(x.nbytes) as address:
        link.send([(x, address)])
        link.receive(back, address)
    assert gpu.copies == {"in": 1, "out": 1}
    assert (x == back).all()


def test_device_memory_stays_within_its_bound(gpu, monkeypatch):
    monkeypatch.setattr(round_trip, "KEPT_BYTES", 3 << 20)
    link = Link(0)
    with link.room(1000) as first:
        pass
    with link.room(2000) as again:
        assert again == first
    with link.room(3 << 20):
        pass
    with link.room(4 << 20):
        pass
    gpu.cuStreamSynchronize(link.stream)
    assert [memory.size - 256 for memory in gpu.held.values()] == [4 << 20]
    assert link.has_room(4 << 20)


def test_memory_that_is_held_counts_as_room(gpu):
    link = Link(0)
    gpu.free = 1 << 20
    assert not link.has_room(1 << 20)
    gpu.free = 1 << 30
    with link.room(1 << 20):
        gpu.free = 0
    assert link.has_room(1 << 20)
    assert not link.has_room(3 << 20)


def faults():
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.skipif(
    sys.platform != "linux" or tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="Linux 5.14 has it"
)
def test_pages_are_made_at_once_and_keep_what_is_in_them():
    x = np.frombuffer(mmap.mmap(-1, 1024 * mmap.PAGESIZE), np.uint8)
    x[5 :: 7 * mmap.PAGESIZE] = 3
    before = x[5 :: 7 * mmap.PAGESIZE].copy()
    round_trip.populate(x)
    count = faults()
    x[:: mmap.PAGESIZE] = 1
    assert faults() - count < 100
    assert np.array_equal(x[5 :: 7 * mmap.PAGESIZE], before)
    round_trip.populate(x[:0])


def test_large_results_are_received_whole_while_their_pages_are_made(gpu, monkeypatch):
    made = []
    monkeypatch.setattr(round_trip, "PAGES_FROM", 4 * mmap.PAGESIZE)
    monkeypatch.setattr(round_trip, "copy_threads", lambda: 2)
    monkeypatch.setattr(round_trip, "populate", made.append)
    source, link = np.arange(4 * mmap.PAGESIZE, dtype=np.uint8), Link(0)
    for target in (np.empty_like(source), np.empty(source.size // 2, np.uint8), np.empty(2 * source.size, "u1")[::2]):
        link.prefault(target)
        with link.room(source.nbytes) as address:
            link.send([(source[: target.size], address)])
            link.receive(target, address)
        assert np.array_equal(target, source[: target.size])
    link._prefaulting.shutdown()
    assert [one.size for one in made] == [source.size]
