"""Control flow and fences: bra, ret, exit, trap, membar, fence, and hints without effect here."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.ptx.module import Negated, Target

from ..definition import Build, Step, defines
from ..running_batch import Frame


def _guard(build: Build) -> tuple[int, bool] | None:
    guard = build.instruction.guard
    if guard is None:
        return None
    return build.predicate(guard) if isinstance(guard, Negated) else (build.source(guard, "pred"), False)


@defines("bra")
def _bra(build: Build) -> Step:
    """Jump to a label; lanes whose guard does not hold fall through."""
    build.flag("uni")
    build.done(1)
    label = build.operands[0]
    if not isinstance(label, Target):
        raise build.error("a label is expected")
    there, here = build.flow.block_at[label.index], build.next_block
    build.sends = True
    guard = _guard(build)
    if guard is None:

        def always(frame: Frame) -> None:
            frame.batch.scheduler.enqueue(there, frame.lanes)

        return always
    slot, negated = guard
    if negated:
        there, here = here, there

    def branch(frame: Frame) -> None:
        taken = frame[slot]
        count = np.count_nonzero(taken)
        lanes, scheduler = frame.lanes, frame.batch.scheduler
        if count == lanes.count:
            scheduler.enqueue(there, lanes)
        elif count == 0:
            scheduler.enqueue(here, lanes)
        else:
            # Conditions are copied: the registers may change before the other side runs.
            scheduler.enqueue(there, lanes.where(taken))
            scheduler.enqueue(here, lanes.where(~taken))

    return branch


@defines("ret", "exit")
def _exit(build: Build) -> Step:
    """End the thread."""
    build.flag("uni")
    build.done(0)
    build.sends = True
    instruction, here = build.instruction, build.next_block
    guard = _guard(build)

    def end(frame: Frame) -> None:
        lanes = frame.lanes
        if guard is not None:
            slot, negated = guard
            ends = ~frame[slot] if negated else frame[slot]
            if not ends.all():
                frame.batch.scheduler.enqueue(here, lanes.where(~ends))
            if not ends.any():
                return
            lanes = lanes.where(ends)
        frame.batch.end(instruction, lanes)

    return end


@defines("trap")
def _trap(build: Build) -> Step:
    """Stop the kernel with an error."""
    build.done(0)
    build.sends = True
    instruction = build.instruction
    here = build.next_block
    guard = _guard(build)

    def trap(frame: Frame) -> None:
        traps = np.ones(frame.lanes.count, np.bool_)
        if guard is not None:
            slot, negated = guard
            traps = ~frame[slot] if negated else frame[slot]
        if traps.any():
            raise frame.batch.fault("trap", "the kernel executed trap", instruction, frame.lanes, traps)
        frame.batch.scheduler.enqueue(here, frame.lanes)

    return trap


@defines("membar", "fence")
def _fence(build: Build) -> Step:
    """Order memory: accesses are in order here, so that only the checks see it."""
    if build.flag("proxy"):
        if build.take("async", "tensormap::generic") != "async":
            build.take("acquire", "release")
            build.take("cta", "cluster", "gpu", "sys")
            build.done(0, 2)
            return _nothing
        space = build.take("global", "shared::cta", "shared::cluster", default="")
        build.done(0)
        return _proxy_fence(build, space != "global")
    if build.flag("mbarrier_init"):
        build.take("release")
        build.take("cluster")
        build.done(0)
        return _proxy_fence(build, False, barriers=True)
    build.take("sc", "acq_rel", "acquire", "release", "gl", "cta", "sys", default="")
    build.take("cta", "cluster", "gpu", "sys", default="")
    build.done(0)
    instruction = build.instruction

    def fence(frame: Frame) -> None:
        for observer in frame.batch.observers:
            observer.memory_fenced(frame.batch, instruction, frame.lanes)

    return fence


def _nothing(frame: Frame) -> None:
    del frame


def _proxy_fence(build: Build, shared: bool, *, barriers: bool = False) -> Step:
    """Let asynchronous operations see what was written: shared memory, or mbarriers."""
    instruction = build.instruction

    def fence(frame: Frame) -> None:
        for observer in frame.batch.observers:
            if shared or barriers:
                observer.proxy_fenced(frame.batch, instruction, frame.lanes, shared)

    return fence


@defines("griddepcontrol")
def _griddepcontrol(build: Build) -> Step:
    """Wait for the predecessor grid, or let dependents start: launches run in order, and only the checks see it."""
    waits = build.take("wait", "launch_dependents") == "wait"
    build.done(0)
    instruction = build.instruction

    def control(frame: Frame) -> None:
        for observer in frame.batch.observers:
            see = observer.grid_awaited if waits else observer.dependents_launched
            see(frame.batch, instruction, frame.lanes)

    return control


@defines("prefetch", "prefetchu", "discard", "applypriority", "nanosleep", "pmevent", "setmaxnreg")
def _hint(build: Build) -> Step:
    """Do nothing: a hint for caches or for timing, neither of which this models."""
    del build
    return _nothing
