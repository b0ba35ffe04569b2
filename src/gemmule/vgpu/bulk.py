"""Bulk copies: what the copy engine (TMA) is asked to do, and when it does it.

The schedule says when: ``late``, a copy into shared memory when nothing else can go on, a copy out of it at the wait
for its group; ``eager``, at once; ``random``, at any time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .engine.lanes import Lanes
from .engine.types import Array
from .memory import GlobalMemory

if TYPE_CHECKING:
    from .engine.batch import Batch


class Source(Protocol):
    """What copies bring pieces of, each named by a row of numbers."""

    def read(self, memory: GlobalMemory, coordinates: Array) -> Array:
        """Return pieces as (n, chunks, 2) words of 8 bytes."""


class Region(Source, Protocol):
    """Memory outside of shared memory that copies move pieces of."""

    def write(self, memory: GlobalMemory, coordinates: Array, data: Array) -> None:
        """Write pieces."""

    def reduce(self, memory: GlobalMemory, coordinates: Array, data: Array, operation: str) -> None:
        """Combine pieces with what is there."""


@dataclasses.dataclass
class Load:
    """Copies into shared memory, by one instruction of some warps.

    Attributes
    ----------
    region : Source
        Where they come from.
    coordinates : array of int64
        A row for each copy.
    copy : array of int
        For each target, which copy it gets; with multicast a copy has several.
    rows : array of int64, (targets, chunks)
        Rows of 16 bytes of the batch's shared memory that are written.
    barriers : array of int
        For each target the mbarrier that is told.
    size : int
        Bytes of a copy.
    """

    region: Source
    coordinates: Array
    copy: Array
    rows: Array
    barriers: Array
    size: int


@dataclasses.dataclass
class Store:
    """Copies out of shared memory, by one instruction of some warps.

    Attributes
    ----------
    region : Region
        Where they go to.
    coordinates : array of int64
        A row for each copy.
    rows : array of int64, (copies, chunks)
        Rows of 16 bytes of the batch's shared memory that are read.
    lanes, group : array of int
        For each copy the lane that issued it, and which of its groups it belongs to.
    operation : str
        What is done with the memory there; nothing: it is written.
    data : array or None
        What was read, once it has been.
    """

    region: Region
    coordinates: Array
    rows: Array
    lanes: Array
    group: Array
    operation: str = ""
    data: Array | None = None

    def part(self, mask: Array) -> Store:
        """Return some of the copies."""
        data = None if self.data is None else self.data[mask]
        return Store(
            self.region, self.coordinates[mask], self.rows[mask], self.lanes[mask], self.group[mask], self.operation,
            data,
        )  # fmt: skip


class BulkCopies:
    """The bulk copies of a batch that are under way.

    Parameters
    ----------
    batch : Batch
        The CTAs.

    Attributes
    ----------
    committed : array of int
        For each lane, how many groups of stores it has made.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._loads: list[Load] = []
        self._stores: list[Store] = []
        self.committed = np.zeros(batch.lane_count, np.int64)
        self._schedule = batch.setting.schedule

    def _at_once(self) -> bool:
        return self._schedule == "eager" or (self._schedule == "random" and self._batch.random.random() < 0.3)

    def load(self, load: Load) -> None:
        """Begin copies into shared memory."""
        if self._at_once():
            self._bring(load)
        else:
            self._loads.append(load)

    def store(self, store: Store) -> None:
        """Begin copies out of shared memory."""
        if self._at_once():
            self._read(store)
            self._write(store)
        else:
            self._stores.append(store)

    def commit(self, lanes: Lanes) -> None:
        """Make the stores since the last commit a group."""
        self.committed[lanes.index] += 1

    def wait(self, lanes: Lanes, left: int, *, read_only: bool) -> None:
        """Let all but the last `left` groups of these lanes have read, or be complete."""
        if not self._stores:
            return
        limit = np.full(self._batch.lane_count, -1, np.int64)
        limit[lanes.index] = self.committed[lanes.index] - left - 1
        still: list[Store] = []
        for store in self._stores:
            due = store.group <= limit[store.lanes]
            if due.any():
                done = store if due.all() else store.part(due)
                self._read(done)
                if read_only:
                    still.append(done)
                else:
                    self._write(done)
            if not due.all():
                still.append(store if not due.any() else store.part(~due))
        self._stores = still

    def fire(self) -> bool:
        """Complete a copy into shared memory, for threads that may wait for it; False where none is under way."""
        if not self._loads:
            return False
        number = int(self._batch.random.integers(len(self._loads))) if self._schedule == "random" else 0
        self._bring(self._loads.pop(number))
        return True

    def finish(self) -> None:
        """Complete what is under way when all threads have ended."""
        while self.fire():
            pass
        for store in self._stores:
            self._read(store)
            self._write(store)
        self._stores = []

    def _bring(self, load: Load) -> None:
        batch = self._batch
        data = load.region.read(batch.memory, load.coordinates)
        batch.shared_rows[load.rows] = data if len(load.copy) == len(data) else data[load.copy]
        batch.mbarriers.bring(load.barriers, np.full(len(load.barriers), load.size))

    def _read(self, store: Store) -> None:
        if store.data is None:
            store.data = self._batch.shared_rows[store.rows]

    def _write(self, store: Store) -> None:
        assert store.data is not None
        if store.operation:
            store.region.reduce(self._batch.memory, store.coordinates, store.data, store.operation)
        else:
            store.region.write(self._batch.memory, store.coordinates, store.data)
