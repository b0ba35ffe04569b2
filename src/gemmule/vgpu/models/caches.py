"""Caches: an L1 cache for each SM, one L2 cache, and the bytes between them and memory.

What is modelled, for each cache: lines of 128 bytes in sectors of 32, a sector fetched at its first request; sets
of `ways` lines, of which the least recently used is replaced; the set chosen by a hash of the line's number, so that
strides that are powers of two spread over the sets.

- L1: loads fill it. A store writes through, updates a sector on a hit and fetches none. Loads with .cg, cp.async.cg and
  atomics bypass it. The caches of different SMs are not coherent.
- L2: loads and stores fill it, stores without fetching (a sector is written whole, by one request or by several while
  it stays). A written sector goes to memory when its line is replaced, or at the end.

What is not: latency, bandwidth, misses in flight (a sector requested again before it arrives is a hit), fetches of more
than a sector, the two partitions of Hopper's L2 and the copies between them, compression, eviction priorities, and the
order in which the hardware runs blocks, for which the caller's order stands. Hash and associativity are unpublished; 16
ways are an assumption. To be held against l1tex__t_sectors_lookup_hit, lts__t_sectors, lts__t_sectors_lookup_hit and
dram__bytes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ArgumentError
from .sectors import SECTOR

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

LINE_SECTORS = 4
LINE = SECTOR * LINE_SECTORS

_EMPTY = -1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _set_of(lines: Integers, sets: int) -> Integers:
    # Knuth's multiplicative hash: the top 31 bits as a fraction of the number of sets.
    fraction = (lines.astype(np.uint64) * _GOLDEN >> np.uint64(33)).astype(np.int64)
    return fraction * sets >> 31


class Cache:
    """One or more caches of a kind, whose content persists between calls.

    Parameters
    ----------
    size : int
        Bytes of one cache; what is over a whole number of sets is not used.
    count : int
        Number of caches.
    ways : int
        Lines of a set.
    write_back : bool
        Whether a store that misses takes a line and leaves its sector dirty, or only goes through.
    """

    def __init__(self, size: int, *, count: int = 1, ways: int = 16, write_back: bool = False) -> None:
        if ways < 1 or count < 1 or size < LINE * ways:
            raise ArgumentError(f"size={size}, count={count}, ways={ways}: a cache holds at least one set of lines")
        self.sets = size // (LINE * ways)
        self.write_back = write_back
        shape = (count * self.sets, ways)
        self._line = np.full(shape, _EMPTY, np.int64)
        self._used = np.zeros(shape, np.int64)
        self._valid = np.zeros(shape, np.uint8)
        self._dirty = np.zeros(shape, np.uint8)
        self._time = 0

    def access(self, caches: Integers | int, sectors: Integers, writes: Mask) -> tuple[Mask, int]:
        """Put a stream of accesses through the caches, in order.

        Parameters
        ----------
        caches : numpy.ndarray of int64 or int
            Cache index of each access.
        sectors : numpy.ndarray of int64
            Sector of each: its byte address div 32.
        writes : numpy.ndarray of bool
            Whether it is a store.

        Returns
        -------
        hits : numpy.ndarray of bool
            Whether the sector was there.
        written_back : int
            Dirty sectors of the lines that were replaced.
        """
        hits = np.ones(len(sectors), bool)
        lines = sectors // LINE_SECTORS
        sets = caches * self.sets + _set_of(lines, self.sets)
        order = np.argsort(sets, kind="stable")
        order = order[~self._repeats(sets[order], sectors[order], writes[order])]
        if not order.size:
            return hits, 0

        # Sets do not touch each other: round t takes access t of every set that has so many, longest streams first.
        touched, start, length = np.unique(sets[order], return_index=True, return_counts=True)
        longest = np.argsort(-length, kind="stable")
        touched, start, length = touched[longest], start[longest], length[longest]
        state = _Sets(self._line[touched], self._used[touched], self._valid[touched], self._dirty[touched])
        bits = np.uint8(1) << (sectors % LINE_SECTORS).astype(np.uint8)
        written_back = 0
        in_round = len(touched)
        for turn in range(int(length[0])):
            while length[in_round - 1] <= turn:
                in_round -= 1
            now = order[start[:in_round] + turn]
            self._time += 1
            hits[now], replaced = state.step(lines[now], bits[now], writes[now], self._time, self.write_back)
            written_back += replaced
        self._line[touched], self._used[touched] = state.line, state.used
        self._valid[touched], self._dirty[touched] = state.valid, state.dirty
        return hits, written_back

    def flush(self) -> int:
        """Make the dirty sectors clean; return how many there were."""
        sectors = int(np.bitwise_count(self._dirty).sum())
        self._dirty[:] = 0
        return sectors

    def _repeats(self, sets: Integers, sectors: Integers, writes: Mask) -> Mask:
        """Return which accesses only repeat the one before them in their set: they hit and change nothing."""
        repeats = np.zeros(len(sets), bool)
        repeats[1:] = (sectors[1:] == sectors[:-1]) & (sets[1:] == sets[:-1]) & (writes[1:] == writes[:-1])
        return repeats if self.write_back else repeats & ~writes


@dataclasses.dataclass
class _Sets:
    """Some sets of a cache: the line in each way, when it was used last, and its sectors as bits."""

    line: Integers
    used: Integers
    valid: NDArray[np.uint8]
    dirty: NDArray[np.uint8]

    def step(
        self, lines: Integers, bits: NDArray[np.uint8], writes: Mask, time: int, write_back: bool
    ) -> tuple[Mask, int]:
        """Put one access through each of the first sets; return the hits and how many dirty sectors were replaced."""
        count = len(lines)
        ways = self.line.shape[1]
        match = self.line[:count] == lines[:, None]
        way = match.argmax(axis=1)
        place = np.arange(0, count * ways, ways) + way
        present = match.ravel()[place]
        line, used = self.line.reshape(-1), self.used.reshape(-1)
        valid, dirty = self.valid.reshape(-1), self.dirty.reshape(-1)
        hits = present & (valid[place] & bits != 0)

        replaced = 0
        fills = np.ones(count, bool) if write_back else ~writes
        if (absent := np.flatnonzero(~present & fills)).size:
            victim = absent * ways + self.used[absent].argmin(axis=1)
            replaced = int(np.bitwise_count(dirty[victim]).sum())
            line[victim] = lines[absent]
            valid[victim] = 0
            dirty[victim] = 0
            place[absent] = victim
        valid[place[fills]] |= bits[fills]
        if write_back:
            dirty[place[writes]] |= bits[writes]
        used[place[fills | hits]] = time
        return hits, replaced


@dataclasses.dataclass
class Traffic:
    """Sectors that passed between the levels."""

    #: l1_loads, l1_load_hits: Sectors that loads requested of the L1 caches, and the hits.
    l1_loads: int = 0
    l1_load_hits: int = 0
    #: l2_loads, l2_load_hits: Sectors requested of the L2 cache, by misses of L1 and by loads that bypass it, and the
    #: hits.
    l2_loads: int = 0
    l2_load_hits: int = 0
    l2_stores: int = 0  #: Sectors written to the L2 cache.
    #: memory_loads, memory_stores: Sectors read from memory, and written to it.
    memory_loads: int = 0
    memory_stores: int = 0

    def bytes_by_level(self) -> dict[str, int]:
        """Return the bytes that loads took from L1's side, and that L2 and memory read and wrote."""
        return {
            "l1": SECTOR * self.l1_loads,
            "l2": SECTOR * (self.l2_loads + self.l2_stores),
            "memory": SECTOR * (self.memory_loads + self.memory_stores),
        }


class Memory:
    """The L1 caches of a chip, its L2 cache, and the traffic that they made.

    Parameters
    ----------
    multiprocessors : int
        Number of L1 caches.
    l1_bytes : int
        Bytes of one, without what its SM sets aside for shared memory.
    l2_bytes : int
        Bytes of the L2 cache.
    ways : int
        Lines of a set, in both.
    """

    def __init__(self, multiprocessors: int, l1_bytes: int, l2_bytes: int, *, ways: int = 16) -> None:
        self.l1 = Cache(l1_bytes, count=multiprocessors, ways=ways)
        self.l2 = Cache(l2_bytes, ways=ways, write_back=True)
        self.traffic = Traffic()

    def access(
        self, multiprocessors: Integers, sectors: Integers, writes: Mask, past_l1: Mask | bool = False
    ) -> tuple[Mask, Mask]:
        """Put a stream of sector accesses through the caches, in order.

        Parameters
        ----------
        multiprocessors : numpy.ndarray of int64
            SM of each.
        sectors : numpy.ndarray of int64
            Its byte address div 32.
        writes : numpy.ndarray of bool
            Whether it is a store. An atomic is a load and a store, both past L1.
        past_l1 : numpy.ndarray of bool or bool
            Whether it goes to L2 at once.

        Returns
        -------
        l1_hits, l2_hits : numpy.ndarray of bool
            Hits; False in caches that were not looked up. A store's hit in L1 saves nothing.
        """
        l1_hits, l2_hits = np.zeros(len(sectors), bool), np.zeros(len(sectors), bool)
        asks_l1 = np.flatnonzero(~np.broadcast_to(past_l1, len(sectors)))
        l1_hits[asks_l1], _ = self.l1.access(multiprocessors[asks_l1], sectors[asks_l1], writes[asks_l1])
        onward = np.flatnonzero(~l1_hits | writes)
        l2_hits[onward], written_back = self.l2.access(0, sectors[onward], writes[onward])

        traffic, loads = self.traffic, ~writes
        traffic.l1_loads += int(np.count_nonzero(loads[asks_l1]))
        traffic.l1_load_hits += int(np.count_nonzero(l1_hits & loads))
        traffic.l2_loads += (lookups := int(np.count_nonzero(loads[onward])))
        traffic.l2_load_hits += (found := int(np.count_nonzero(l2_hits & loads)))
        traffic.l2_stores += int(np.count_nonzero(writes))
        traffic.memory_loads += lookups - found
        traffic.memory_stores += written_back
        return l1_hits, l2_hits

    def flush(self) -> None:
        """Write the dirty sectors of L2 to memory, as happens sooner or later."""
        self.traffic.memory_stores += self.l2.flush()
