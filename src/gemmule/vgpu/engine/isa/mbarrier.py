"""Instructions of barriers in shared memory (mbarrier): they initialise, arrive, expect bytes, test and wait."""

from __future__ import annotations

import dataclasses

import numpy as np

from gemmule.vgpu.ptx.module import Immediate, Sink
from gemmule.vgpu.types import Array

from ..definition import Build, Step, defines
from ..lanes import Lanes
from ..running_batch import Frame, RunningBatch
from ..spaces import Locator, address_of, locator
from .mbarrier_phases import LIMIT, SIZE, MBarriers, pending_in

#: In the random schedule, the chance that a wait fails at once: code that goes on then needs another wait.
_FAILS = 0.4
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
    """Parse the modifiers of memory ordering, and return them."""
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
