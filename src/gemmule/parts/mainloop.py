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


class Mainloop:
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
        self.stages, self.stage_bytes = stages, stage_bytes
        self.pingpong, self.turn_barrier = pingpong, turn_barrier

    def barriers(self, smem: Any) -> tuple[Any, Any]:
        """Allocate the full and the empty barriers of all stages."""
        return smem.allocate_array(cutlass.Int64, self.stages), smem.allocate_array(cutlass.Int64, self.stages)

    @cute.jit
    def init(self, full, empty, releases: cutlass.Constexpr[int]):
        """Initialise the barriers, by one thread; a stage is empty after so many releases."""
        for s in cutlass.range_constexpr(self.stages):
            cute.arch.mbarrier_init(full + s, 1)
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

    @cute.jit
    def load(self, loads, full, empty, stage, phase, k_tiles):
        """Issue the loads of `k_tiles` k-tiles, each as soon as a stage is empty; return the next pipeline state.

        ``loads(k)`` gives pairs of a `TmaLoad` and the place of its k-tile.
        """
        for k in cutlass.range(k_tiles):
            cute.arch.mbarrier_wait(empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, self.stage_bytes)
            for one, place in loads(k):
                one.issue(place, stage, full)
            stage, phase = self.advance(stage, phase)
        return stage, phase

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
