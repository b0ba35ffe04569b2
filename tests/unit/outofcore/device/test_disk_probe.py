"""The rate at which files are read: on the disk and in the page cache, whoever has read them before."""

from __future__ import annotations

import errno
import math
import os
import threading

import numpy as np
import pytest

from gemmule.outofcore.device.planner import disk_probe
from gemmule.outofcore.device.planner.disk_probe import USUAL, Probe, copy_rate, read_rate, write_rate
from gemmule.outofcore.device.planner.page_cache import held
from gemmule.outofcore.device.planner.probe_cache import ProbeCache
from support.system_calls import failing, replaced

BLOCK, RUN = 1 << 16, 4


class Cache:
    """A page cache in blocks, which reads ahead of nothing; reading as many as a probe does takes a second."""

    def __init__(self, monkeypatch) -> None:
        self.blocks: dict[int, set[int]] = {}
        self.reads: list[list[tuple[int, int]]] = []
        self._real = os.preadv
        replaced(monkeypatch, "preadv", self.preadv)
        self.probe = Probe(BLOCK, RUN, 1, lambda: len(self.reads) / RUN)

    def preadv(self, descriptor, buffers, place, flags=0):
        there = self.blocks.setdefault(os.fstat(descriptor).st_ino, set())
        count = sum(len(buffer) for buffer in buffers)
        blocks = range(place // BLOCK, (place + count - 1) // BLOCK + 1)
        if flags & os.RWF_NOWAIT:
            if not there.issuperset(blocks):
                raise BlockingIOError
            return count
        self.reads.append((os.fstat(descriptor).st_ino, place // BLOCK))
        there.update(blocks)
        return self._real(descriptor, buffers, place)

    def taken(self):
        """Return what was read since this was asked for."""
        reads, self.reads = self.reads, []
        return sorted(reads)


@pytest.fixture
def cache(monkeypatch):
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system does not tell what its page cache holds")
    return Cache(monkeypatch)


def file(path, blocks, more=0):
    path.write_bytes(bytes(blocks * BLOCK + more))
    return str(path)


def test_a_second_probe_reads_what_the_first_has_not(cache, tmp_path):
    path = file(tmp_path / "a", 16, more=100)
    first = read_rate([path, None], 1, cache.probe)
    once = cache.taken()
    assert [place for _, place in once] == [6, 7, 8, 9]
    second = read_rate([path, None], 1, cache.probe)
    assert not set(once) & set(cache.taken())
    # What the probe has read is there when the product reads it: a quarter of the file, then half of it.
    assert first.rate == first.slow == first.fast == pytest.approx(RUN * BLOCK / 0.75, rel=0.03)
    assert second.rate == second.slow == pytest.approx(RUN * BLOCK / 0.5, rel=0.03)


def test_what_the_cache_holds_takes_no_time(cache, tmp_path):
    one, other = file(tmp_path / "a", 24), file(tmp_path / "b", 8)
    cache.blocks[os.stat(one).st_ino] = set(range(24))
    # A quarter of all is not there, half of which the probe reads.
    assert read_rate([one, other], 1, cache.probe).rate == pytest.approx(8 * RUN * BLOCK)
    assert {node for node, _ in cache.taken()} == {os.stat(other).st_ino}
    # With all of it there, it is read from there.
    cache.blocks[os.stat(other).st_ino] = set(range(8))
    assert read_rate([one, other], 1, cache.probe).rate == RUN * BLOCK


def test_files_that_are_shorter_than_a_run(cache, tmp_path):
    one, other = file(tmp_path / "a", 3, more=5), file(tmp_path / "b", 0, more=9)
    found = read_rate([one, other, file(tmp_path / "c", 0)], 1, cache.probe)
    # Two requests, each a quarter of a second; half of the longest one will be there.
    left = 3 * BLOCK + 5 + 9 - (3 * BLOCK + 5) // 2
    assert found.rate == pytest.approx((3 * BLOCK + 5) // 2 * 2 * (3 * BLOCK + 14) / left)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system does not tell what its page cache holds")
def test_the_page_cache_of_this_system(tmp_path):
    path = file(tmp_path / "a", 64)
    if not all(held(path, BLOCK)):
        pytest.skip("this file system does not tell what the page cache holds")
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if sum(held(path, BLOCK)) > 32:
        pytest.skip("this file system keeps files in memory")
    # Those that were asked about do not count as held the next time.
    assert sum(held(path, BLOCK)) < 32


def test_a_system_that_does_not_tell_holds_nothing(tmp_path, monkeypatch):
    path = file(tmp_path / "a", 3)

    failing(monkeypatch, "preadv", errno.EOPNOTSUPP)
    assert held(path, BLOCK) == [False] * 3
    monkeypatch.delattr(os, "preadv")
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert held(path, BLOCK) == [False] * 3


def test_the_beginning_and_the_end_of_what_is_read_do_not_count(cache, tmp_path):
    def clock():
        # The first two and the last two take ten seconds more each.
        return (done := len(cache.reads)) + 10 * min(done, 2) + 10 * max(done - 14, 0)

    found = read_rate([file(tmp_path / "a", 64)], 1, Probe(BLOCK, 16, 1, clock))
    assert found.rate == found.slow == found.fast == pytest.approx(BLOCK / 0.75, rel=0.02)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_copied_by_threads(order):
    array, seconds = np.zeros((8, BLOCK // 8), order=order), iter(range(100))
    # Half of the array is copied, a second for each block.
    assert copy_rate(array, 1, Probe(BLOCK, 16, 1, lambda: next(seconds))) == pytest.approx(BLOCK)
    assert copy_rate(array, 1, Probe(BLOCK, 16, array.nbytes + 1)) == math.inf
    assert copy_rate(array[:, ::2], 1, Probe(BLOCK, 16, 1)) == math.inf


def test_time_begins_when_all_threads_are_there():
    array, before, alive = np.zeros(16 * BLOCK, np.uint8), threading.active_count(), []

    def clock():
        alive.append(threading.active_count() - before)
        return float(len(alive))

    assert copy_rate(array, 3, Probe(BLOCK, 16, 1, clock)) > 0
    assert alive[0] == 3


def test_threads_that_the_system_refuses_leave_none_waiting(monkeypatch):
    start, before, errors = threading.Thread.start, threading.active_count(), []

    def refuse(thread):
        if thread.name.startswith("ThreadPoolExecutor") and threading.active_count() > before + 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    def probe():
        try:
            copy_rate(np.zeros(16 * BLOCK, np.uint8), 4, Probe(BLOCK, 16, 1))
        except RuntimeError as error:
            errors.append(str(error))

    monkeypatch.setattr(threading.Thread, "start", refuse)
    prober = threading.Thread(target=probe, daemon=True)
    prober.start()
    prober.join(10)
    assert errors == ["can't start new thread"]
    assert threading.active_count() == before


def test_writes_are_not_timed_where_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_probe, "_tried_writes", lambda *_: pytest.fail("written"))
    probes = ProbeCache(tmp_path / "rates.json", measures=False)
    assert write_rate(str(tmp_path), 1 << 40, 1, stored=probes) == USUAL
    assert probes.stated
