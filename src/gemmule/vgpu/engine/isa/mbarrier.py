"""Barriers in shared memory (mbarrier), which count arrivals and bytes and complete phase by phase; and mapa."""

from __future__ import annotations

import dataclasses

import numpy as np

from gemmule.vgpu.dataflow.control_flow import flow_of
from gemmule.vgpu.ptx.module import Immediate, Instruction, Sink
from gemmule.vgpu.types import Array

from ..definition import Build, Step, defines
from ..lanes import Lanes
from ..running_batch import Frame, RunningBatch, Unit
from ..spaces import RANK_SHIFT, WINDOWS, Locator, address_of, locator

#: Bytes of an mbarrier.
SIZE = 8
#: Largest number of arrivals, and of bytes, that one counts.
LIMIT = (1 << 20) - 1
#: A state is a phase, and from this bit on the arrivals that it waited for.
_PENDING = 32

#: In the random schedule, the chance that a wait fails at once: code that goes on then needs another wait.
_FAILS = 0.4


def pending_in(states: Array) -> Array:
    """Return the arrivals that phases waited for when their states were got."""
    found: Array = (states.astype(np.uint64) >> np.uint64(_PENDING)).astype(np.uint32)
    return found


class MBarriers(Unit):
    """The mbarriers of a batch; the place of one is its byte position in the batch's shared memory, divided by 8.

    Attributes
    ----------
    expected : array of int
        Arrivals of a phase; 0 where there is no mbarrier.
    pending : array of int
        Arrivals that the current phase still waits for.
    bytes : array of int
        Bytes that it still waits for; negative where more have arrived than were expected.
    phase : array of int
        Phases completed.
    """

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        places = len(batch.shared) // SIZE
        self.expected = np.zeros(places, np.int32)
        self.pending = np.zeros(places, np.int32)
        self.bytes = np.zeros(places, np.int32)
        self.phase = np.zeros(places, np.int32)
        # Lanes whose wait fails since the phase is not complete; those that failed since the last phase, by block.
        self.failed = np.zeros(batch.lane_count, np.bool_)
        self._failed_before: dict[int, Array] = {}
        # The same of waits that are answered at once, by instruction.
        self._peeked: dict[int, Array] = {}

    def initialise(self, places: Array, counts: Array) -> None:
        """Make mbarriers."""
        self.expected[places] = counts
        self.pending[places] = counts
        self.bytes[places] = 0
        self.phase[places] = 0

    def invalidate(self, places: Array) -> None:
        """Make them ordinary memory again."""
        self.expected[places] = 0

    def check(self, instruction: Instruction, lanes: Lanes, places: Array) -> None:
        """Refuse what was not initialised."""
        missing = self.expected[places] == 0
        if missing.any():
            raise self._batch.fault(
                "barrier", f"there is no mbarrier at {self.name(int(places[missing][0]))}: it was not initialised",
                instruction, lanes, missing, space="shared", address=self.address(int(places[missing][0])),
            )  # fmt: skip

    def expect(self, places: Array, sizes: Array) -> None:
        """Expect more bytes in the current phase."""
        np.add.at(self.bytes, places, sizes)

    def states(self, places: Array, counts: Array) -> Array:
        """Return the states of phases before arrivals, of which those of lower lanes come first."""
        pending = self.pending[places].astype(np.int64)
        if len(np.unique(places)) < len(places):
            order = np.argsort(places, kind="stable")
            before = np.cumsum(counts[order]) - counts[order]
            first = np.concatenate([[True], places[order][1:] != places[order][:-1]])
            start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
            pending[order] -= before - before[start]
        phase = self.phase[places].astype(np.int64)
        found: Array = (phase | np.maximum(pending, 0) << _PENDING).astype(np.uint64)
        return found

    def check_incomplete(self, instruction: Instruction, lanes: Lanes, places: Array, counts: Array) -> None:
        """Refuse arrivals that complete a phase where they say that they do not."""
        unique, inverse = np.unique(places, return_inverse=True)
        last = (np.bincount(inverse, counts) >= self.pending[unique])[inverse]
        if last.any():
            place = int(places[last][0])
            raise self._batch.fault(
                "barrier", f"arrivals that must not complete a phase complete that of {self.state(place)}", instruction,
                lanes, last, space="shared", address=self.address(place),
            )  # fmt: skip

    def expect_arrivals(self, places: Array) -> None:
        """Expect one more arrival in the current phase, for each of the places."""
        np.add.at(self.pending, places, 1)

    def arrive(self, instruction: Instruction, lanes: Lanes, places: Array, counts: Array) -> None:
        """Count arrivals: those of a warp together, one warp after another.

        More arrivals of a warp than a phase waits for are a fault, as on an H200.
        """
        unique, inverse = np.unique(places, return_inverse=True)
        arrivals = np.bincount(inverse, counts).astype(np.int32)
        over = arrivals > self.pending[unique]
        if over.any():
            late = over[inverse]
            warps = lanes.index // 32
            for warp in np.unique(warps[late]).tolist():
                mine = late & (warps == warp)
                self._arrive_of_warp(instruction, lanes, places, np.where(mine, counts, 0))
            arrivals[over] = 0
        self.pending[unique] -= arrivals
        self._complete(unique)

    def _arrive_of_warp(self, instruction: Instruction, lanes: Lanes, places: Array, counts: Array) -> None:
        unique, inverse = np.unique(places[counts > 0], return_inverse=True)
        arrivals = np.bincount(inverse, counts[counts > 0]).astype(np.int32)
        over = arrivals > self.pending[unique]
        if over.any():
            place = int(unique[over][0])
            raise self._batch.fault(
                "barrier",
                f"{int(arrivals[over][0])} arrivals, more than {self.state(place)} waits for",
                instruction, lanes, (places == place) & (counts > 0), space="shared", address=self.address(place),
            )  # fmt: skip
        self.pending[unique] -= arrivals
        self._complete(unique)

    def complete_bytes(self, places: Array, sizes: Array) -> None:
        """Count bytes that have arrived."""
        np.subtract.at(self.bytes, places, sizes)
        self._complete(np.unique(places))

    def is_complete(self, places: Array, parity: Array) -> Array:
        """Say whether the phase of that parity has completed: the last one, or the current one has not."""
        found: Array = (self.phase[places] & 1) != (parity & 1)
        return found

    def _complete(self, places: Array) -> None:
        done = places[(self.pending[places] == 0) & (self.bytes[places] == 0) & (self.expected[places] > 0)]
        if not len(done):
            return
        self.phase[done] += 1
        self.pending[done] = self.expected[done]
        self._failed_before, self._peeked = {}, {}
        for observer in self._batch.observers:
            observer.mbarrier_completed(self._batch, done)
        self._batch.scheduler.wake()

    def fail_once(self, instruction: int, index: Array) -> None:
        """Let a wait of lanes fail, unless it has since the last phase: where it does loop, it stops them then."""
        before = self._peeked.setdefault(instruction, np.zeros(self._batch.lane_count, np.bool_))
        fresh = index[~before[index]]
        before[fresh] = self.failed[fresh] = True

    def fail_waits(self) -> bool:
        scheduler, blocks = self._batch.scheduler, flow_of(self._batch.kernel).blocks
        fresh = False
        for block, lanes in scheduler.parked.items():
            if blocks[block].instructions[0].name != "mbarrier":
                continue
            before = self._failed_before.setdefault(block, np.zeros(self._batch.lane_count, np.bool_))
            index = lanes.index[~before[lanes.index]]
            before[index] = self.failed[index] = True
            fresh |= bool(len(index))
        if fresh:
            scheduler.wake()
        return fresh

    def address(self, place: int) -> int:
        """Return the address of an mbarrier within its CTA."""
        return place * SIZE % self._batch.shared_stride

    def cta(self, place: int) -> int:
        """Return the CTA of an mbarrier, counted within the batch."""
        return place * SIZE // self._batch.shared_stride

    def name(self, place: int) -> str:
        """Say where an mbarrier is."""
        label = self._label(place)
        return f"{self.address(place):#x}{f' ({label})' if label else ''}{self._of_cta(place)}"

    def _label(self, place: int) -> str:
        """Return an mbarrier's name in the source; nothing where it has none."""
        tile = self._batch.tile_at(self.address(place))
        if tile is None:
            return ""
        return f"{tile.name}[{(self.address(place) - tile.start) // SIZE}]" if tile.size > SIZE else tile.name

    def _of_cta(self, place: int) -> str:
        batch = self._batch
        if batch.cluster_ctas == 1:
            return ""
        return f" of CTA {batch.geometry.coordinates(batch.ctas[self.cta(place)])}"

    def state(self, place: int) -> str:
        """Say what an mbarrier has counted."""
        expected, pending = int(self.expected[place]), int(self.pending[place])
        parts = [self._label(place), f"phase {int(self.phase[place])}", f"{expected - pending} of {expected} arrived"]
        parts.append(f"{int(self.bytes[place])} bytes pending")
        where = f"{self.address(place):#x}{self._of_cta(place)}"
        return f"mbarrier {where} ({', '.join(part for part in parts if part)})"


#: Larger than any rank in a cluster.
_NO_RANK = 200
SPACES = ("shared", "shared::cta", "shared::cluster")


def finder(build: Build, operand: int, space: str) -> Locator:
    """Return the locator of the mbarriers that an operand names."""
    return locator(build, space, address_of(build, build.operands[operand]), SIZE)


def places_of(frame: Frame, find: Locator, build: Build) -> Array:
    """Return the places of mbarriers within the batch."""
    space, position, _ = find(frame)
    if space != "shared":
        raise frame.batch.fault(
            "out of bounds", f"an mbarrier is in shared memory, this address is in {space} memory", build.instruction,
            frame.lanes, np.ones(frame.lanes.count, np.bool_),
        )  # fmt: skip
    return position // SIZE


def _order(build: Build) -> str:
    """Take the modifiers that say how the instruction orders memory, and return what is said."""
    order = build.take("release", "acquire", "relaxed", default="")
    build.take("cta", "cluster", default="")
    return order


@defines("mbarrier")
def _mbarrier(build: Build) -> Step:
    """Initialise, arrive, expect bytes, test or wait."""
    action = build.take(
        "init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait", "pending_count"
    )  # fmt: skip
    if action == "pending_count":
        return _pending_count(build)
    if action in ("test_wait", "try_wait"):
        return _wait(build, action)
    arrives = action in ("arrive", "arrive_drop")
    expect = arrives and build.flag("expect_tx")
    completes = not (arrives and build.flag("noComplete"))
    order = _order(build) if action not in ("init", "inval") else ""
    space = build.take(*SPACES, default="generic").split("::")[0]
    build.take("b64", default="")
    if action == "init":
        return _init(build, space)
    if action == "inval":
        return _inval(build, space)
    if action in ("expect_tx", "complete_tx"):
        return _bytes(build, action, space)
    how = _Arrival(expect, action == "arrive_drop", order != "relaxed", completes)
    return _arrive(build, space, how)


def _init(build: Build, space: str) -> Step:
    build.done(2)
    find, count = finder(build, 0, space), build.source(build.operands[1], "u32")
    instruction = build.instruction

    def step(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        places = places_of(frame, find, build)
        counts = np.broadcast_to(np.asarray(frame[count]), (lanes.count,)).astype(np.int64)
        wrong = (counts < 1) | (counts > LIMIT)
        if wrong.any():
            raise batch.fault(
                "barrier", f"an mbarrier for {int(counts[wrong][0])} arrivals; it counts 1 to {LIMIT}", instruction,
                lanes, wrong,
            )  # fmt: skip
        MBarriers.of(batch).initialise(places, counts)
        for observer in batch.observers:
            observer.mbarrier_initialised(batch, instruction, lanes, places)

    return step


def _inval(build: Build, space: str) -> Step:
    build.done(1)
    find = finder(build, 0, space)

    def step(frame: Frame) -> None:
        places = places_of(frame, find, build)
        MBarriers.of(frame.batch).check(build.instruction, frame.lanes, places)
        MBarriers.of(frame.batch).invalidate(places)
        for observer in frame.batch.observers:
            observer.mbarrier_invalidated(frame.batch, places)

    return step


def _bytes(build: Build, action: str, space: str) -> Step:
    build.done(2)
    find, size = finder(build, 0, space), build.source(build.operands[1], "u32")

    def step(frame: Frame) -> None:
        batch, places = frame.batch, places_of(frame, find, build)
        MBarriers.of(batch).check(build.instruction, frame.lanes, places)
        sizes = np.broadcast_to(np.asarray(frame[size]), (frame.lanes.count,)).astype(np.int64)
        if action == "expect_tx":
            MBarriers.of(batch).expect(places, sizes)
        else:
            MBarriers.of(batch).complete_bytes(places, sizes)

    return step


@dataclasses.dataclass(frozen=True)
class _Arrival:
    """Effects of an arrival: expect bytes, drop an arrival for later phases, release memory, complete the phase."""

    expect: bool
    drop: bool
    releases: bool
    completes: bool


def _arrive(build: Build, space: str, how: _Arrival) -> Step:
    expect = how.expect
    build.done(2, 3) if expect else build.done(1, 2, 3) if how.completes else build.done(3)
    operands = list(build.operands)
    out = None
    # An optional first operand receives the state of the phase, for a later wait.
    if not hasattr(operands[0], "base"):
        target = operands.pop(0)
        build.operands = tuple(operands)
        if not isinstance(target, Sink):
            out = build.dest(target, "b64")
    find = finder(build, 0, space)
    amount = build.source(operands[1], "u32") if len(operands) > 1 else None
    instruction = build.instruction

    def step(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        barriers, places = MBarriers.of(batch), places_of(frame, find, build)
        barriers.check(instruction, lanes, places)
        counts = np.ones(lanes.count, np.int64)
        if amount is not None and not expect:
            counts[...] = frame[amount]
        if not how.completes:
            barriers.check_incomplete(instruction, lanes, places, counts)
        if out is not None:
            frame[out][...] = barriers.states(places, counts)
        if amount is not None and expect:
            barriers.expect(places, np.broadcast_to(np.asarray(frame[amount]), (lanes.count,)).astype(np.int64))
        for observer in batch.observers:
            observer.mbarrier_arrived(batch, instruction, lanes, places, how.releases)
        if how.drop:
            np.subtract.at(barriers.expected, places, counts.astype(np.int32))
        barriers.arrive(instruction, lanes, places, counts)

    return step


def _wait(build: Build, action: str) -> Step:
    """Test whether a phase is complete; a wait stops the thread until it is, or for a time that the hardware chooses.

    Here both stop while other lanes can run; but where the thread goes on to something else without the phase, the late
    schedule answers at once, once.
    """
    parity = build.flag("parity")
    order = _order(build)
    space = build.take(*SPACES, default="generic").split("::")[0]
    build.take("b64", default="")
    build.done(*((3, 4) if action == "try_wait" else (3,)))
    target = build.operands[0]
    find = finder(build, 1, space)
    asked = build.source(build.operands[2], "u32" if parity else "b64")
    if len(build.operands) == 4 and not isinstance(build.operands[3], Immediate):
        build.source(build.operands[3], "u32")
    out = build.dest(target, "pred")
    instruction, acquires = build.instruction, order != "relaxed"
    peeks = not _loops(build)

    def complete(frame: Frame) -> tuple[Array, Array]:
        places = places_of(frame, find, build)
        MBarriers.of(frame.batch).check(instruction, frame.lanes, places)
        wanted = np.broadcast_to(np.asarray(frame[asked]), (frame.lanes.count,)).astype(np.int64)
        return places, MBarriers.of(frame.batch).is_complete(places, wanted)

    def gate(frame: Frame, taking_part: Array | None) -> Array | None:
        batch = frame.batch
        if taking_part is not None:
            found = np.ones(frame.lanes.count, np.bool_)
            if taking_part.any():
                part = frame.part(taking_part, build.read_slots)
                ready = gate(part, None)
                found[taking_part] = True if ready is None else ready
            return found
        _, done = complete(frame)
        schedule = batch.launch_state.schedule
        if done.all() or (schedule == "random" and batch.random.random() < _FAILS):
            return None
        barriers, index = MBarriers.of(batch), frame.lanes.index
        if peeks and schedule == "late":
            barriers.fail_once(instruction.index, index[~done])
        return np.asarray(done | barriers.failed[index])

    def step(frame: Frame) -> None:
        batch, lanes = frame.batch, frame.lanes
        places, done = complete(frame)
        MBarriers.of(batch).failed[lanes.index] = False
        frame[out][...] = done
        if acquires and batch.observers and done.any():
            some = lanes if done.all() else lanes.where(done)
            for observer in batch.observers:
                observer.mbarrier_awaited(batch, instruction, some, places[done])

    def waits_for(batch: RunningBatch, lanes: Lanes) -> str:
        frame = batch.frame(lanes, build.binder.uses(build.reads, ()))
        places = places_of(frame, find, build)
        return f"waits for {MBarriers.of(batch).state(int(places[0]))}"

    build.gate, build.waits_for = gate, waits_for
    return step


def _loops(build: Build) -> bool:
    """Say whether a failed wait leads back to itself, by jumps only."""
    blocks, own = build.flow.blocks, build.next_block - 1
    waiting, seen = list(blocks[own].successors), {own}
    if len(blocks[own].instructions) > 1 and any(one.name != "bra" for one in blocks[own].instructions[1:]):
        return False
    while waiting:
        number = waiting.pop()
        if number == own:
            return True
        if number not in seen and all(one.name == "bra" for one in blocks[number].instructions):
            seen.add(number)
            waiting += blocks[number].successors
    return False


def _pending_count(build: Build) -> Step:
    """Return the arrivals that a phase waited for when its state was taken."""
    build.take("b64")
    build.done(2)
    state, out = build.source(build.operands[1], "b64"), build.dest(build.operands[0], "u32")

    def step(frame: Frame) -> None:
        frame[out][...] = pending_in(np.asarray(frame[state]))

    return step


@defines("mapa")
def _mapa(build: Build) -> Step:
    """Give the address of the same place in another CTA's shared memory."""
    space = build.take("shared::cluster", default="generic")
    kind = build.type("u32", "u64")
    build.done(3)
    source, rank = build.source(build.operands[1], kind), build.source(build.operands[2], "u32")
    out = build.dest(build.operands[0], kind)
    start = WINDOWS["shared"] if space == "generic" else 0

    def step(frame: Frame) -> None:
        # Ranks that are not in the cluster are found when the address is used.
        ranks = np.minimum(np.broadcast_to(np.asarray(frame[rank]), (frame.lanes.count,)).astype(np.int64), _NO_RANK)
        address = np.asarray(frame[source]).astype(np.int64) - start
        within = address & ((1 << RANK_SHIFT) - 1)
        frame[out][...] = (start + within + ((ranks + 1) << RANK_SHIFT)).astype(frame[out].dtype)

    return step
