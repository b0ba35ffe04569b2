"""Caches: streams worked out by hand, and an ordinary list kept in order of use."""

import time

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError
from gemmule.vgpu.models.caches import Cache, Memory, Traffic

LINE = 128


def stream(text):
    """Return sectors and writes of e.g. ``0.0 3.1 w0.2``: line and sector, w for a store."""
    words = text.split()
    numbers = [word.removeprefix("w").split(".") for word in words]
    sectors = np.array([4 * int(line) + int(sector) for line, sector in numbers], np.int64)
    return sectors, np.array([word.startswith("w") for word in words], bool)


def hits(cache, text):
    found, written_back = cache.access(0, *stream(text))
    return "".join("h" if hit else "." for hit in found), written_back


def test_sectors_are_fetched_one_by_one():
    assert hits(Cache(2 * LINE, ways=2), "0.0 0.1 0.0 0.1 0.3 0.3") == ("..hh.h", 0)


def test_the_least_recently_used_line_goes():
    cache = Cache(2 * LINE, ways=2)
    # 0 is used again, so that 2 replaces 1; 1 then replaces 0.
    assert hits(cache, "0.0 1.0 0.0 2.0 0.0 1.0 2.0") == ("..h.h..", 0)
    # What is there stays from call to call: 1 and 2.
    assert hits(cache, "1.0 2.0 3.0 1.0") == ("hh..", 0)


def test_a_replaced_line_comes_back_without_its_sectors():
    assert hits(Cache(LINE, ways=1), "0.0 0.1 1.0 0.1 0.0 0.1") == (".....h", 0)


def test_write_through_allocates_nothing():
    cache = Cache(2 * LINE, ways=2)
    assert hits(cache, "w0.0 w0.0 0.0 w0.0 w0.1 0.1 0.0") == ("...h..h", 0)
    assert cache.flush() == 0
    # A store that hits is a use: 1 goes, not 0.
    assert hits(cache, "1.0 w0.0 2.0 0.0 1.0") == (".h.h.", 0)
    # One that misses is none: 0 goes.
    cache = Cache(2 * LINE, ways=2)
    assert hits(cache, "0.0 1.0 w0.3 2.0 0.0") == (".....", 0)


def test_write_back():
    cache = Cache(2 * LINE, ways=2, write_back=True)
    # Two dirty sectors of line 0 go when 2 comes, none of line 1.
    assert hits(cache, "w0.0 w0.1 w0.0 0.0 0.2 1.0 2.0") == ("..hh...", 2)
    assert hits(cache, "3.0 0.0") == ("..", 0)
    assert hits(cache, "w0.0 w0.3 w3.1") == ("h..", 0)
    assert cache.flush() == 3
    assert cache.flush() == 0
    assert hits(cache, "4.0 5.0") == ("..", 0)


def test_caches_of_a_kind_share_nothing():
    cache = Cache(LINE, count=3, ways=1)
    which, sectors = np.array([0, 1, 0, 2, 1, 1, 0]), np.array([0, 0, 0, 4, 4, 0, 0])
    found, _ = cache.access(which, sectors, np.zeros(7, bool))
    assert found.tolist() == [False, False, True, False, False, False, True]


@pytest.mark.parametrize("write_back", [False, True])
@pytest.mark.parametrize(("ways", "sets", "count"), [(1, 4, 1), (4, 1, 2), (4, 3, 2), (16, 2, 1)])
def test_against_lists(rng, ways, sets, count, write_back):
    """Any mixture, in pieces, against lists in order of use, one for each set that the cache itself chooses."""
    cache = Cache(ways * sets * LINE, count=count, ways=ways, write_back=write_back)
    number = 6000
    which = rng.integers(0, count, number)
    lines = rng.integers(0, 3 * ways * sets, number) * rng.choice([1, 1 << 20])
    lines[::2] = np.repeat(lines[::4], 2)
    sectors = lines * 4 + rng.integers(0, 4, number)
    writes = rng.random(number) < 0.3

    kept = {}
    chosen = {}
    for line in np.unique(lines):
        probe = Cache(ways * sets * LINE, ways=ways)
        probe.access(0, np.array([4 * line]), np.zeros(1, bool))
        chosen[line] = int(np.flatnonzero((probe._line == line).any(axis=1))[0])
    assert len(set(chosen.values())) == sets
    expected, replaced = [], 0
    for one, line, sector, write in zip(which, lines, sectors % 4, writes, strict=True):
        in_use = kept.setdefault((one, chosen[line]), [])
        entry = next((entry for entry in in_use if entry[0] == line), None)
        hit = entry is not None and sector in entry[1]
        expected.append(hit)
        if write and not write_back and not hit:
            continue
        if entry is None:
            entry = [line, set(), set()]
            if len(in_use) == ways:
                replaced += len(in_use.pop(0)[2])
        else:
            in_use.remove(entry)
        in_use.append(entry)
        entry[1].add(sector)
        if write and write_back:
            entry[2].add(sector)

    found, written_back = [], 0
    for part in np.array_split(np.arange(number), 7):
        some, dirty = cache.access(which[part], sectors[part], writes[part])
        found += some.tolist()
        written_back += dirty
    assert found == expected
    assert written_back == replaced
    assert cache.flush() == sum(len(entry[2]) for in_use in kept.values() for entry in in_use)


@pytest.mark.parametrize("stride", [1, 2, 3, 32, 1024, 4096])
def test_strides_spread_over_the_sets(stride):
    """Half a cache of lines stays, whatever their stride."""
    cache = Cache(256 * 1024, ways=16)
    sectors = np.arange(1024) * stride * 4
    reads = np.zeros(1024, bool)
    assert not cache.access(0, sectors, reads)[0].any()
    assert cache.access(0, sectors, reads)[0].mean() > 0.95


def test_bytes_between_the_levels():
    """Two multiprocessors with a line of L1 each, an L2 of two lines."""
    memory = Memory(2, LINE, 2 * LINE, ways=1)
    memory.l2 = Cache(2 * LINE, ways=2, write_back=True)
    sectors, writes = stream("0.0 0.0 0.0 w0.0 1.0 0.1 2.0 0.0")
    multiprocessors = np.array([0, 0, 1, 1, 0, 0, 0, 1])
    past_l1 = np.array([False] * 5 + [True, False, False])
    l1_hits, l2_hits = memory.access(multiprocessors, sectors, writes, past_l1)
    #  0: miss, miss; 0 again: L1; 1: L2; the store: through, and 0 is dirty; 0: line 1, miss, miss;
    #  past L1 0.1: a sector that L2 lacks; line 2 replaces 1 in L2; 1 still has 0.0 in L1.
    assert l1_hits.tolist() == [False, True, False, True, False, False, False, True]
    assert l2_hits.tolist() == [False, False, True, True, False, False, False, False]
    assert memory.traffic == Traffic(
        l1_loads=6, l1_load_hits=2, l2_loads=5, l2_load_hits=1, l2_stores=1, memory_loads=4, memory_stores=0
    )
    memory.access(np.array([0, 0]), *stream("3.0 4.0"))
    assert memory.traffic.memory_stores == 1
    memory.access(np.array([1, 1]), *stream("w5.0 w5.1"))
    memory.flush()
    assert memory.traffic.memory_stores == 3
    assert memory.traffic.bytes_by_level() == {"l1": 32 * 8, "l2": 32 * (7 + 3), "memory": 32 * (6 + 3)}


def test_one_read_of_a_matrix_that_fits():
    """Every multiprocessor reads 8 MiB: each L1 misses all, L2 brings it from memory once."""
    memory = Memory(4, 128 * 1024, 50 * 2**20)
    count = 8 * 2**20 // 32
    sectors = np.arange(count).repeat(4)
    memory.access(np.tile(np.arange(4), count), sectors, np.zeros(4 * count, bool))
    assert memory.traffic.l1_load_hits == 0
    assert memory.traffic.memory_loads == count
    assert memory.traffic.l2_load_hits == 3 * count


def test_millions_of_accesses(rng):
    """Far from the limit of time, but far from one after the other too."""
    memory = Memory(132, 128 * 1024, 50 * 2**20)
    count = 1_000_000
    start = time.process_time()
    memory.access(rng.integers(0, 132, count), rng.integers(0, 2**22, count), rng.random(count) < 0.2)
    assert time.process_time() - start < 10


def test_no_accesses():
    none = np.empty(0, np.int64)
    memory = Memory(2, 4096, 8192)
    assert [part.size for part in memory.access(none, none, none.astype(bool))] == [0, 0]
    assert memory.traffic == Traffic()


def test_a_cache_holds_a_set():
    with pytest.raises(ArgumentError, match="size=1024"):
        Cache(1024, ways=16)
