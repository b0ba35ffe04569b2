"""Asynchronous operations: copies that are issued now and take place later.

The hardware may complete a copy at any time between its issue and the wait that asks for it. The schedule says when it
does here: ``late``, at that wait, or when nothing else can go on if an mbarrier is to be told; ``eager``, at once;
``random``, at either.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from .engine.lanes import Lanes
from .engine.types import Array
from .ptx.module import Instruction

if TYPE_CHECKING:
    from .engine.batch import Batch


@dataclasses.dataclass
class Copy:
    """One `cp.async` instruction of some lanes.

    Attributes
    ----------
    index : array of int
        The lanes.
    group : array of int
        For each lane, the number of the group that the copy will belong to.
    target, source : array of int64
        Byte offsets into the batch's shared memory and into the arena.
    size : int
        Bytes that are written.
    read : array of int64
        For each lane, bytes that are read; the others are written as zeros.
    """

    index: Array
    group: Array
    target: Array
    source: Array
    size: int
    read: Array


@dataclasses.dataclass
class Signal:
    """Arrivals at mbarriers that copies bring about.

    Attributes
    ----------
    instruction : Instruction
        What asks for it.
    lanes : Lanes
        The lanes whose copies they are.
    places : array of int
        For each lane its mbarrier.
    """

    instruction: Instruction
    lanes: Lanes
    places: Array


class Copies:
    """The copies of a batch that are under way.

    Parameters
    ----------
    batch : Batch
        The CTAs.

    Attributes
    ----------
    committed : array of int
        For each lane, how many groups it has made.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._pending: list[Copy] = []
        self._signals: list[Signal] = []
        self.committed = np.zeros(batch.lane_count, np.int64)
        self._schedule = batch.setting.schedule

    def issue(self, lanes: Lanes, target: Array, source: Array, size: int, read: Array) -> None:
        """Begin a copy; its group is the next one that the lanes commit."""
        copy = Copy(lanes.index, self.committed[lanes.index], target, source, size, read)
        if self._schedule == "eager" or (self._schedule == "random" and self._batch.random.random() < 0.5):
            self._perform(copy)
        else:
            self._pending.append(copy)

    def commit(self, lanes: Lanes) -> None:
        """Make the copies since the last commit a group."""
        self.committed[lanes.index] += 1

    def wait(self, lanes: Lanes, left: int) -> None:
        """Complete all but the last `left` groups of these lanes."""
        if self._pending:
            self._complete(lanes, self.committed[lanes.index] - left - 1)

    def signal(self, signal: Signal) -> None:
        """Let lanes arrive at mbarriers once the copies that they have issued are complete."""
        if self._schedule == "eager" or (self._schedule == "random" and self._batch.random.random() < 0.5):
            self._arrive(signal)
        else:
            self._signals.append(signal)

    def fire(self) -> bool:
        """Complete copies that an mbarrier is to be told of; False where there are none."""
        if not self._signals:
            return False
        number = int(self._batch.random.integers(len(self._signals))) if self._schedule == "random" else 0
        self._arrive(self._signals.pop(number))
        return True

    def finish(self) -> None:
        """Complete what nobody waited for."""
        while self.fire():
            pass
        for copy in self._pending:
            self._perform(copy)
        self._pending = []

    def _arrive(self, signal: Signal) -> None:
        # What these lanes have issued since may complete as early.
        self._complete(signal.lanes, self.committed[signal.lanes.index])
        ones = np.ones(len(signal.places), np.int64)
        self._batch.mbarriers.arrive(signal.instruction, signal.lanes, signal.places, ones)

    def _complete(self, lanes: Lanes, last: Array) -> None:
        """Complete the copies of lanes up to the last group of each."""
        limit = np.full(self._batch.lane_count, -1, np.int64)
        limit[lanes.index] = last
        still = []
        for copy in self._pending:
            due = copy.group <= limit[copy.index]
            if due.all():
                self._perform(copy)
            elif due.any():
                self._perform(_part(copy, due))
                still.append(_part(copy, ~due))
            else:
                still.append(copy)
        self._pending = still

    def unfinished(self) -> list[Copy]:
        """Return the copies that are under way."""
        return list(self._pending)

    def _perform(self, copy: Copy) -> None:
        """Read and write, now."""
        memory, shared, size = self._batch.memory, self._batch.shared_words, copy.size
        word = min(size, 8)
        for offset in range(0, size, word):
            values = memory.words(word)[np.where(copy.read > 0, copy.source + offset, 0) // word]
            kept = np.clip(copy.read - offset, 0, word)
            if (kept < word).any():
                mask = np.where(
                    kept < word, (np.uint64(1) << (8 * kept).astype(np.uint64) % 64) - np.uint64(1), 2**64 - 1
                )
                values = values & mask.astype(values.dtype)
            shared[word][(copy.target + offset) // word] = values


def _part(copy: Copy, mask: Array) -> Copy:
    """Return the copy of those lanes only."""
    return Copy(copy.index[mask], copy.group[mask], copy.target[mask], copy.source[mask], copy.size, copy.read[mask])
