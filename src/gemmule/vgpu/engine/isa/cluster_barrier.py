"""The barrier of a cluster: its threads arrive, and later wait until all have."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.ptx.module import Instruction
from gemmule.vgpu.types import Array

from ..definition import Build, Step
from ..lanes import Lanes
from ..running_batch import Frame, RunningBatch, Unit


class ClusterBarriers(Unit):
    """The barriers of the clusters of a batch."""

    def __init__(self, batch: RunningBatch) -> None:
        super().__init__(batch)
        self._lanes = batch.cta_lanes * batch.cluster_ctas
        clusters = len(batch.ctas) // batch.cluster_ctas
        self._phase = np.zeros(clusters, np.int64)
        # For each lane the phase that it arrived in, -1 where it has not since its last wait.
        self._came = np.full(batch.lane_count, -1, np.int64)

    def arrive(self, instruction: Instruction, lanes: Lanes, *, releases: bool) -> None:
        """Let lanes arrive; none may do so twice without waiting between."""
        twice = self._came[lanes.index] >= 0
        if twice.any():
            raise self._batch.fault(
                "barrier", "arrives at the cluster's barrier again, without a wait between", instruction, lanes, twice
            )
        for observer in self._batch.observers:
            observer.cluster_arrived(self._batch, instruction, lanes, releases)
        self._came[lanes.index] = self._phase[lanes.index // self._lanes]
        self._release()

    def complete(self, instruction: Instruction, lanes: Lanes) -> Array:
        """Say for which lanes the barrier at which they arrived is complete."""
        came = self._came[lanes.index]
        if (came < 0).any():
            raise self._batch.fault(
                "barrier", "waits at the cluster's barrier without having arrived", instruction, lanes, came < 0
            )
        found: Array = self._phase[lanes.index // self._lanes] > came
        return found

    def leave(self, instruction: Instruction, lanes: Lanes, *, acquires: bool) -> None:
        """Release lanes from their wait."""
        self._came[lanes.index] = -1
        for observer in self._batch.observers:
            observer.cluster_left(self._batch, instruction, lanes, acquires)

    def lanes_ended(self) -> None:
        if (self._came >= 0).any():
            self._release()

    def _release(self) -> None:
        came = self._came.reshape(-1, self._lanes)
        alive = self._batch.alive.reshape(-1, self._lanes)
        now = came == self._phase[:, None]
        complete = (now | ~alive).all(axis=1) & now.any(axis=1)
        if complete.any():
            for observer in self._batch.observers:
                observer.cluster_completed(self._batch, np.flatnonzero(complete))
            self._phase[complete] += 1
            self._batch.scheduler.wake()

    def waits_for(self, lanes: Lanes) -> str:
        """Say who has not arrived that a lane waits for."""
        batch = self._batch
        first = int(lanes.index[0]) // self._lanes * self._lanes
        own = slice(first, first + self._lanes)
        lacking = batch.alive[own] & (self._came[own] != self._phase[first // self._lanes])
        warps = np.unique((first + np.flatnonzero(lacking)) // 32)
        names = []
        for warp in warps.tolist():
            cta, number = divmod(warp, batch.geometry.warps)
            names.append(f"{batch.geometry.coordinates(batch.ctas[cta])} warp {number}")
        return f"waits at the barrier of its cluster; missing: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def cluster_barrier(build: Build) -> Step:
    """Arrive at the barrier of the cluster, or wait at it."""
    action = build.take("arrive", "wait")
    order = build.take("release", "relaxed", "acquire", default="")
    build.flag("aligned")
    build.done(0)
    instruction = build.instruction
    if action == "arrive":

        def arrive(frame: Frame) -> None:
            ClusterBarriers.of(frame.batch).arrive(instruction, frame.lanes, releases=order != "relaxed")

        return arrive

    def gate(frame: Frame, taking_part: Array | None) -> Array | None:
        lanes = frame.lanes if taking_part is None else frame.lanes.where(taking_part)
        ready = np.ones(frame.lanes.count, np.bool_)
        if lanes.count:
            done = ClusterBarriers.of(frame.batch).complete(instruction, lanes)
            if done.all():
                return None
            ready[slice(None) if taking_part is None else taking_part] = done
        return ready

    def wait(frame: Frame) -> None:
        ClusterBarriers.of(frame.batch).leave(instruction, frame.lanes, acquires=True)

    def waits_for(batch: RunningBatch, lanes: Lanes) -> str:
        return ClusterBarriers.of(batch).waits_for(lanes)

    build.gate, build.waits_for = gate, waits_for
    return wait
