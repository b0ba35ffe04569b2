"""Asynchronous copies from global to shared memory: cp.async, its groups and waits.

The hardware may complete a copy at any time between its issue and the wait for its group. The schedule decides when it
completes here: ``late``, at that wait, or, for a copy that arrives at an mbarrier, when nothing else can run;
``eager``, at once; ``random``, at either.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gemmule.vgpu.ptx.module import Immediate, Instruction
from gemmule.vgpu.types import Array

from ..definition import Build, Step, defines
from ..lanes import Lanes
from ..running_batch import AsyncUnit, Frame, RunningBatch
from ..spaces import address_of, locator
from .bulk_copy import bulk_copy
from .mbarrier import SPACES, finder, places_of
from .mbarrier_phases import MBarriers


@dataclasses.dataclass
class Copy:
    """One `cp.async` instruction of some lanes."""

    index: Array  #: Array of int. The lanes.
    group: Array  #: Array of int. For each lane, the number of the group that the copy will belong to.
    #: target, source: Array of int64. Byte offsets into the batch's shared memory and into the arena.
    target: Array
    source: Array
    size: int  #: Bytes that are written.
    read: Array  #: Array of int64. For each lane, bytes that are read; the others are written as zeros.


@dataclasses.dataclass
class Signal:
    """Arrivals at mbarriers when copies complete."""

    instruction: Instruction  #: The instruction.
    lanes: Lanes  #: The lanes whose copies they are.
    places: Array  #: Array of int. For each lane its mbarrier.


class Copies(AsyncUnit):
    """The copies of a batch that are in flight.

    Attributes
    ----------
    committed : array of int
        For each lane, how many groups it has committed.
    """

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        self._pending: list[Copy] = []
        self._signals: list[Signal] = []
        self.committed = np.zeros(batch.lane_count, np.int64)

    def issue(self, lanes: Lanes, target: Array, source: Array, size: int, read: Array) -> None:
        """Issue a copy; its group is the next one that the lanes commit."""
        copy = Copy(lanes.index, self.committed[lanes.index], target, source, size, read)
        if self._at_once():
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
        if self._at_once():
            self._arrive(signal)
        else:
            self._signals.append(signal)

    def complete_one(self) -> bool:
        if not self._signals:
            return False
        self._arrive(self._one_of(self._signals))
        return True

    def finish(self) -> None:
        while self.complete_one():
            pass
        for copy in self._pending:
            self._perform(copy)
        self._pending = []

    def _arrive(self, signal: Signal) -> None:
        # Later copies of these lanes may complete as early.
        self._complete(signal.lanes, self.committed[signal.lanes.index])
        ones = np.ones(len(signal.places), np.int64)
        MBarriers.of(self._batch).arrive(signal.instruction, signal.lanes, signal.places, ones)

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
        """Return the copies that are in flight."""
        return list(self._pending)

    def _perform(self, copy: Copy) -> None:
        """Read and write, now."""
        memory, shared, size = self._batch.memory, self._batch.shared_words, copy.size
        word = min(size, 8)
        if int(copy.read.min()) >= size:
            for offset in range(0, size, word):
                shared[word][(copy.target + offset) // word] = memory.words(word)[(copy.source + offset) // word]
            return
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


@defines("cp")
def _cp(build: Build) -> Step:
    """Copy 4, 8 or 16 bytes without waiting; bytes beyond the source's size become zeros."""
    if "async" not in build.instruction.modifiers:
        raise build.error("the virtual GPU does not model this instruction")
    if "bulk" in build.instruction.modifiers:
        return bulk_copy(build)
    if "mbarrier" in build.instruction.modifiers:
        return _signalling(build)
    build.take("async")
    if build.flag("commit_group"):
        build.done(0)
        return _committing(build)
    if build.flag("wait_group"):
        build.done(1)
        return _waiting(build, build.integer(build.operands[0]))
    if build.flag("wait_all"):
        build.done(0)
        commit, wait = _committing(build), _waiting(build, 0)

        def commit_and_wait(frame: Frame) -> None:
            commit(frame)
            wait(frame)

        return commit_and_wait
    return _copy(build)


def _copy(build: Build) -> Step:
    way = build.take("ca", "cg")
    build.take("shared", "shared::cta")
    build.take("global")
    for level in ("L2::64B", "L2::128B", "L2::256B"):
        build.flag(level)
    hint = build.flag("L2::cache_hint")
    build.done(3, 4, 5)
    size = build.integer(build.operands[2])
    if size not in ((16,) if way == "cg" else (4, 8, 16)):
        raise build.error("cp.async copies 4, 8 or 16 bytes, and .cg 16")
    rest = list(build.operands[3:])
    if hint:
        rest.pop()
    instruction = build.instruction
    target = locator(build, "shared", address_of(build, build.operands[0]), size)
    source_size = None
    ignored: tuple[int, bool] | None = None
    if rest:
        operand = rest[0]
        is_predicate = not isinstance(operand, Immediate) and getattr(operand, "type", "pred") == "pred"
        if is_predicate:
            ignored = build.predicate(operand)
        else:
            source_size = build.source(operand, "u32")
    source_operand = address_of(build, build.operands[1])
    source = locator(build, "global", source_operand, size)

    def copy(frame: Frame) -> None:
        lanes, batch = frame.lanes, frame.batch
        _, position, address = target(frame)
        read = np.full(lanes.count, size, np.int64)
        if source_size is not None:
            read[...] = frame[source_size]
            if (read > size).any():
                raise batch.fault(
                    "out of bounds", f"the source size {int(read.max())} is more than {size}", instruction, lanes,
                    read > size,
                )  # fmt: skip
        elif ignored is not None:
            slot, negated = ignored
            read[~frame[slot] if negated else frame[slot]] = 0
        origin = np.zeros(lanes.count, np.int64)
        least, most = int(read.min()), int(read.max())
        # The address of an empty read may be anything.
        seen = np.zeros(lanes.count, np.int64)
        for count in (most,) if least == most else np.unique(read).tolist():
            if count == 0:
                continue
            mask = read == count
            part = frame if mask.all() else frame.part(mask, build.read_slots)
            _, origin[mask], seen[mask] = source(part, count)
        if batch.observers and most > 0:
            some = read > 0
            readers = lanes if least > 0 else lanes.where(some)
            sizes = read[some] if int(read[some].min()) < most else None
            batch.access(instruction, readers, "global", seen[some], most, read=True, asynchronous=True, sizes=sizes)
        if batch.observers:
            batch.access(instruction, lanes, "shared", address, size, write=True, asynchronous=True)
        Copies.of(batch).issue(lanes, position, origin, size, read)

    return copy


def _signalling(build: Build) -> Step:
    """Arrive at an mbarrier when the lane's copies are complete: one more arrival, or (noinc) one that it expects."""
    for word in ("async", "mbarrier", "arrive"):
        build.take(word)
    counted = build.flag("noinc")
    space = build.take(*SPACES[:2], default="generic").split("::")[0]
    build.take("b64")
    build.done(1)
    find, instruction = finder(build, 0, space), build.instruction

    def signal(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        places = places_of(frame, find, build)
        MBarriers.of(batch).check(instruction, lanes, places)
        if not counted:
            MBarriers.of(batch).expect_arrivals(places)
        for observer in batch.observers:
            observer.copies_signalled(batch, instruction, lanes, places)
        Copies.of(batch).signal(Signal(instruction, lanes, places))

    return signal


def _committing(build: Build) -> Step:
    instruction = build.instruction

    def commit(frame: Frame) -> None:
        batch = frame.batch
        Copies.of(batch).commit(frame.lanes)
        for observer in batch.observers:
            observer.copies_committed(batch, instruction, frame.lanes)

    return commit


def _waiting(build: Build, left: int) -> Step:
    instruction = build.instruction

    def wait(frame: Frame) -> None:
        batch = frame.batch
        Copies.of(batch).wait(frame.lanes, left)
        for observer in batch.observers:
            observer.copies_awaited(batch, instruction, frame.lanes, left)

    return wait
