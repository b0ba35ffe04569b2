"""Jumps, ends, barriers of a CTA, fences."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.ptx.module import Negated, Target

from .clusters import cluster_barrier
from .define import Build, Step, defines
from .registers import Frame


def _guard(build: Build) -> tuple[int, bool] | None:
    guard = build.instruction.guard
    if guard is None:
        return None
    return build.predicate(guard) if isinstance(guard, Negated) else (build.source(guard, "pred"), False)


@defines("bra")
def _bra(build: Build) -> Step:
    """Go to a label; lanes whose guard does not hold go on."""
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
            frame.batch.scheduler.go(there, frame.lanes)

        return always
    slot, negated = guard
    if negated:
        there, here = here, there

    def branch(frame: Frame) -> None:
        taken = frame[slot]
        count = np.count_nonzero(taken)
        lanes, scheduler = frame.lanes, frame.batch.scheduler
        if count == lanes.count:
            scheduler.go(there, lanes)
        elif count == 0:
            scheduler.go(here, lanes)
        else:
            # Conditions are copied: the registers may change before the other side runs.
            scheduler.go(there, lanes.where(taken))
            scheduler.go(here, lanes.where(~taken))

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
                frame.batch.scheduler.go(here, lanes.where(~ends))
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
            raise frame.batch.fault("trap", "the kernel stopped itself", instruction, frame.lanes, traps)
        frame.batch.scheduler.go(here, frame.lanes)

    return trap


@defines("bar", "barrier")
def _bar(build: Build) -> Step:
    """Arrive at a named barrier of the CTA, and wait unless it is ``.arrive``; or meet the warp's other lanes."""
    if build.flag("cluster"):
        return cluster_barrier(build)
    build.flag("cta")
    if build.flag("warp"):
        return _warp_barrier(build)
    action = build.take("sync", "arrive")
    # `bar` is `barrier.aligned`: the same instruction in all lanes of a warp.
    build.flag("aligned")
    build.done(*((2,) if action == "arrive" else (1, 2)))
    barrier = build.source(build.operands[0], "u32")
    count = build.source(build.operands[1], "u32") if len(build.operands) == 2 else None
    build.sends = True
    instruction, following = build.instruction, build.next_block

    def arrive(frame: Frame) -> None:
        lanes = frame.lanes
        number = np.broadcast_to(np.asarray(frame[barrier]), (lanes.count,)).astype(np.int64)
        expected = None
        if count is not None:
            counts = np.broadcast_to(np.asarray(frame[count]), (lanes.count,))
            expected = int(counts[0])
            wrong = (counts != expected) | (counts % 32 != 0) | (counts == 0)
            if wrong.any():
                raise frame.batch.fault(
                    "barrier",
                    f"the barrier's thread count {int(counts[wrong][0])} must be a multiple of 32 and the same for all",
                    instruction,
                    lanes,
                    wrong,
                )
        frame.batch.barriers.arrive(instruction, lanes, number, expected, following, wait=action == "sync")

    return arrive


def _warp_barrier(build: Build) -> Step:
    """Wait for the lanes that a mask names, wherever in the code they wait for the same."""
    build.take("sync")
    build.done(1)
    slot = build.source(build.operands[0], "u32")
    build.sends = True
    instruction, following = build.instruction, build.next_block

    def arrive(frame: Frame) -> None:
        masks = np.broadcast_to(np.asarray(frame[slot]), (frame.lanes.count,))
        frame.batch.warp_barriers.arrive(instruction, frame.lanes, masks, following)

    return arrive


@defines("membar", "fence")
def _fence(build: Build) -> Step:
    """Order memory: memory is one here and in order, so that only the checks take notice."""
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


@defines("prefetch", "prefetchu", "discard", "applypriority", "griddepcontrol", "nanosleep", "pmevent", "setmaxnreg")
def _hint(build: Build) -> Step:
    """Do nothing: a hint for caches or for timing, neither of which this models."""
    del build
    return _nothing
