"""Asynchronous copies from global to shared memory: cp.async, its groups and waits."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.asynchronous import Signal
from gemmule.vgpu.ptx.module import Immediate

from .bulk_copies import bulk_copy
from .define import Build, Step, defines
from .loads import address_of
from .mbarrier import SPACES, finder, places_of
from .registers import Frame
from .spaces import locator


@defines("cp")
def _cp(build: Build) -> Step:
    """Copy 4, 8 or 16 bytes without waiting; bytes beyond the source's size become zeros."""
    if "async" not in build.instruction.modifiers:
        raise build.error("the virtual GPU does not know this instruction")
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
        # Where nothing is read, the address may be any.
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
        batch.copies.issue(lanes, position, origin, size, read)

    return copy


def _signalling(build: Build) -> Step:
    """Let an mbarrier know when the lane's copies are complete: one more arrival, or (noinc) one that it waits for."""
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
        batch.mbarriers.check(instruction, lanes, places)
        if not counted:
            batch.mbarriers.await_more(places)
        for observer in batch.observers:
            observer.copies_signalled(batch, instruction, lanes, places)
        batch.copies.signal(Signal(instruction, lanes, places))

    return signal


def _committing(build: Build) -> Step:
    instruction = build.instruction

    def commit(frame: Frame) -> None:
        batch = frame.batch
        batch.copies.commit(frame.lanes)
        for observer in batch.observers:
            observer.copies_committed(batch, instruction, frame.lanes)

    return commit


def _waiting(build: Build, left: int) -> Step:
    instruction = build.instruction

    def wait(frame: Frame) -> None:
        batch = frame.batch
        batch.copies.wait(frame.lanes, left)
        for observer in batch.observers:
            observer.copies_awaited(batch, instruction, frame.lanes, left)

    return wait
