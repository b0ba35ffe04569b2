"""Mainloop of a warp-specialised GEMM on Hopper: one warp issues TMA loads, warpgroups multiply with wgmma.

A ring of stages in shared memory lies between them. A stage is *full* when the bytes of its TMA loads have arrived and
*empty* when every warpgroup that reads it, in every CTA that shares it by multicast, has released it. Both sides hold
a pipeline state, (stage, phase): the phase of a barrier flips each time around the ring.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup

WARPGROUP = 128
# Warpgroups that take turns in ping-pong.
_CONSUMERS = 2


@dataclasses.dataclass(frozen=True)
class TmaLoad:
    """A TMA load of one operand's k-tile into a stage.

    Attributes
    ----------
    atom : CopyAtom
        The load.
    smem, gmem : Tensor
        Stages, and tiles of the operand as (box, tile, k-tile, …), both partitioned for the atom.
    multicast : tuple or None
        Rank of the first CTA in the cluster that receives it, distance to the next, and how many; None is this CTA
        alone.
    """

    atom: Any
    smem: Any
    gmem: Any
    multicast: Any = None

    def issue(self, place: tuple[Any, ...], stage: Any, full: Any) -> None:
        """Issue the load of the k-tile at `place`; the stage's barrier counts its bytes."""
        source, target = self.gmem[(None, *place)], self.smem[None, stage]
        if self.multicast is None:
            cute.copy(self.atom, source, target, tma_bar_ptr=full + stage)
        else:
            first, step, ctas = self.multicast
            mask = cutlass.Int16(sum(1 << step * number for number in range(ctas)))
            if first is not None:
                mask = mask << first.to(cutlass.Int16)
            cute.copy(self.atom, source, target, tma_bar_ptr=full + stage, mcast_mask=mask)


def partitioned(atom: Any, stages: Any, tiles: Any, rank: Any = 0, ctas: int = 1) -> tuple[Any, Any]:
    """Return stages and tiles partitioned for a TMA atom; of `ctas` that share a tile, this one loads part `rank`."""
    return cpasync.tma_partition(
        atom, rank, cute.make_layout(ctas), cute.group_modes(stages, 0, 2), cute.group_modes(tiles, 0, 2)
    )


class Ring:
    """Stages that are used one after another, around and around; the pipeline state is (stage, phase).

    Parameters
    ----------
    stages : int
        How many.
    """

    def __init__(self, stages: int) -> None:
        self.stages = stages

    def barriers(self, smem: Any) -> tuple[Any, Any]:
        """Allocate the full and the empty barriers of all stages."""
        return smem.allocate_array(cutlass.Int64, self.stages), smem.allocate_array(cutlass.Int64, self.stages)

    @cute.jit
    def init(self, full, empty, arrivals: cutlass.Constexpr[int], releases: cutlass.Constexpr[int]):
        """Initialise the barriers, by one thread: a stage is full after so many arrivals, empty after the releases."""
        for s in cutlass.range_constexpr(self.stages):
            cute.arch.mbarrier_init(full + s, arrivals)
            cute.arch.mbarrier_init(empty + s, releases)

    @cute.jit
    def advance(self, stage, phase):
        """Return the next pipeline state."""
        stage = stage + 1
        if stage == self.stages:
            stage = Int32(0)
            phase = phase ^ 1
        return stage, phase

    def skip(self, stage: Any, phase: Any, count: Any) -> tuple[Any, Any]:
        """Return the pipeline state after `count` k-tiles that others consume."""
        passed = stage + count
        return passed % self.stages, (phase + passed // self.stages) % 2


class Mainloop(Ring):
    """Producer and consumer sides of the pipeline.

    Parameters
    ----------
    stages : int
        Stages in shared memory.
    stage_bytes : int
        Bytes that the loads of a stage bring to a CTA.
    pingpong : bool
        Whether the two warpgroups multiply tiles of their own alternately; else both share a tile.
    turn_barrier : int
        The first of two named barriers for ping-pong.
    """

    def __init__(self, stages: int, stage_bytes: int, *, pingpong: bool = False, turn_barrier: int = 1) -> None:
        super().__init__(stages)
        self.stage_bytes = stage_bytes
        self.pingpong, self.turn_barrier = pingpong, turn_barrier

    @cute.jit
    def load(self, loads, batch, full, empty, stage, phase, first_k, k_tiles):
        """Issue the loads of `k_tiles` k-tiles from `first_k` on, each as soon as a stage is empty.

        `loads` are pairs of a `TmaLoad` and the tile that it is of, `batch` the coordinates behind the k-tile's.

        Returns
        -------
        stage, phase
            The next pipeline state.
        """
        for k in cutlass.range(k_tiles):
            places = tuple((one, (tile, first_k + k, *batch)) for one, tile in loads)
            stage, phase = self.load_stage(places, full, empty, stage, phase)
        return stage, phase

    @cute.jit
    def load_stage(self, loads, full, empty, stage, phase):
        """Issue the loads of a stage, pairs of a `TmaLoad` and a place, once it is empty; return the next state."""
        cute.arch.mbarrier_wait(empty + stage, phase)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, self.stage_bytes)
        for one, place in loads:
            one.issue(place, stage, full)
        return self.advance(stage, phase)

    @cute.jit
    def drain(self, empty, stage, phase):
        """Stay resident until every remote arrival on this CTA's empty barriers is in."""
        for _ in cutlass.range(self.stages):
            cute.arch.mbarrier_wait(empty + stage, phase)
            stage, phase = self.advance(stage, phase)

    @cute.jit
    def multiply(self, mma, accumulators, rA, rB, full, stage, phase, k_tiles, release):
        """Multiply k-tiles as they arrive; the last wgmma group is still in flight when this returns.

        Parameters
        ----------
        mma : TiledMma
            The instruction; its first product overwrites the accumulators.
        accumulators, rA, rB : Tensor
            Accumulators, and fragments of A and B by stage.
        full : Pointer
            Barriers of full stages.
        stage, phase, k_tiles : Int32
            The pipeline state, and how many k-tiles.
        release : callable
            ``release(stage)`` arrives at the stage's empty barriers.

        Returns
        -------
        stage, phase, last
            The next pipeline state, and the stage to release after `warpgroup.wait_group(0)`.
        """
        mma.set(warpgroup.Field.ACCUMULATE, False)
        last = stage
        for k in cutlass.range(k_tiles):
            cute.arch.mbarrier_wait(full + stage, phase)
            warpgroup.fence()
            for step_k in cutlass.range_constexpr(cute.size(rA, mode=[2])):
                cute.gemm(mma, accumulators, rA[None, None, step_k, stage], rB[None, None, step_k, stage], accumulators)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            # With one group in flight the one before it is complete.
            warpgroup.wait_group(1)
            if k > 0:
                release(last)
            last = stage
            stage, phase = self.advance(stage, phase)
        return stage, phase, last

    @cute.jit
    def begin_turn(self, warpgroup_idx):
        """Wait until the other warpgroup has issued its products."""
        if cutlass.const_expr(self.pingpong):
            cute.arch.barrier(barrier_id=self.turn_barrier + warpgroup_idx, number_of_threads=_CONSUMERS * WARPGROUP)

    @cute.jit
    def end_turn(self, warpgroup_idx):
        """Let the other warpgroup issue its products."""
        if cutlass.const_expr(self.pingpong):
            cute.arch.barrier_arrive(
                barrier_id=self.turn_barrier + 1 - warpgroup_idx, number_of_threads=_CONSUMERS * WARPGROUP
            )


@cute.jit
def release_local(empty, stage):
    """Release a stage to this CTA's producer, by one thread of the warpgroup."""
    tid, _, _ = cute.arch.thread_idx()
    if tid % WARPGROUP == 0:
        cute.arch.mbarrier_arrive(empty + stage)


@cute.jit
def release_cluster(scheduler, empty, stage):
    """Release a stage to every CTA of the cluster that loads into it, each by one thread of the warpgroup.

    These are the CTAs of this one's column, with itself, and then the others of its row.
    """
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % WARPGROUP
    row, col = scheduler.rank()
    ctas_m, ctas_n = cutlass.const_expr(scheduler.cluster_m), cutlass.const_expr(scheduler.cluster_n)
    if cutlass.const_expr(ctas_m * ctas_n == 1):
        if lane == 0:
            cute.arch.mbarrier_arrive(empty + stage)
    else:
        other = lane - ctas_m
        other = other + 1 if other >= col else other
        peer = col * ctas_m + lane if lane < ctas_m else other * ctas_m + row
        if lane < ctas_m + ctas_n - 1:
            cute.arch.mbarrier_arrive(empty + stage, peer)


def multicast_a(scheduler: Any, row: Any) -> Any:
    """Return which CTAs receive a load of A: those of this row of the cluster."""
    return None if scheduler.cluster_n == 1 else (row, scheduler.cluster_m, scheduler.cluster_n)


def multicast_b(scheduler: Any, col: Any) -> Any:
    """Return which CTAs receive a load of B: those of this column of the cluster."""
    return None if scheduler.cluster_m == 1 else (col * scheduler.cluster_m, 1, scheduler.cluster_m)
