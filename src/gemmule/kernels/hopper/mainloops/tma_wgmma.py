"""Mainloop of a warp-specialised GEMM on Hopper: one warp issues TMA loads, warpgroups multiply with wgmma.

A pipeline of stages in shared memory lies between them. A stage is *full* when the bytes of its TMA loads have arrived
and *empty* when every warpgroup that reads it, in every CTA that shares it by multicast, has released it. Both sides
hold a pipeline state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync, warpgroup

from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .operands import OperandStages
from .pipeline import Pipeline, PipelineState, sync_cluster
from .wgmma import issue_group, k_block_mmas, wait_group_and_release


class Mainloop(Pipeline):
    """Producer and consumer sides of the pipeline.

    Parameters
    ----------
    num_stages : int
        Stages in shared memory.
    stage_bytes : int
        Bytes of the loads that fill a stage of a CTA.
    pingpong : bool
        Whether the two warpgroups multiply tiles of their own alternately; else both share a tile.
    order_barrier : int
        The first of two named barriers for ping-pong.
    """

    #: Whether cooperative warpgroups alternate by k-tiles; in ping-pong they alternate by tiles in any case.
    takes_turns = False
    #: Arrivals at the full barrier of a stage, and threads of a consumer of which one releases it.
    producer_arrivals, releasing = 1, WARPGROUP
    #: Whether `multiply` takes a function to call during k-tiles.
    calls_during = True
    #: Whether a tile may have no k-tile at all: its accumulators are zero then.
    may_be_empty = False

    def __init__(self, num_stages: int, stage_bytes: int, *, pingpong: bool = False, order_barrier: int = 1) -> None:
        super().__init__(num_stages)
        self.stage_bytes = stage_bytes
        self.pingpong, self.order_barrier = pingpong, order_barrier

    @cute.jit
    def prologue(
        self,
        warp,
        operands,
        barriers,
        consumer_arrivals: cutlass.Constexpr[int],
        cluster_size: cutlass.Constexpr[int] = 1,
        waits: cutlass.Constexpr[bool] = True,
    ):
        """Initialise the pipeline's barriers, by warp 0, and wait for all threads of the cluster.

        Then, with `waits`, wait for the predecessor grid's writes, and let the dependent grid launch. It is the
        prologue of kernels that have no other barriers in shared memory.
        """
        if warp == 0:
            for operand in operands:
                cpasync.prefetch_descriptor(operand.atom)
            with cute.arch.elect_one():
                self.init(barriers, 1, consumer_arrivals)
            cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(cluster_size > 1):
            sync_cluster()
        else:
            cute.arch.sync_threads()
        if cutlass.const_expr(waits):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def load(self, loads, batch, barriers, state, k_range):
        """Issue the loads of a range of k-tiles, each as soon as a stage is empty; return the next pipeline state.

        Parameters
        ----------
        loads : tuple
            Pairs of a `TmaLoad` and the index of its tile, along M or N.
        batch : tuple
            Coordinates after that of the k-tile.
        barriers : Barriers
            State of the pipeline.
        state : PipelineState
            The producer's.
        k_range : KTileRange
            The first k-tile, and how many.
        """
        start, num_k_tiles = k_range
        for k in cutlass.range(num_k_tiles):
            coords = tuple((load, (tile_idx, start + k, *batch)) for load, tile_idx in loads)
            state = self.load_stage(coords, barriers, state)
        return state

    @cute.jit
    def load_stage(self, loads, barriers, state):
        """Issue the loads of a stage, pairs of `TmaLoad` and coordinate, once it is empty; return the next state."""
        cute.arch.mbarrier_wait(barriers.empty + state.stage, state.phase)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barriers.full + state.stage, self.stage_bytes)
        for load, coord in loads:
            load.issue(coord, state.stage, barriers.full)
        return self.advance(state)

    @cute.jit
    def producer_tail(self, barriers, state):
        """Stay resident until every remote arrival on this CTA's empty barriers is in."""
        for _ in cutlass.range(self.num_stages):
            cute.arch.mbarrier_wait(barriers.empty + state.stage, state.phase)
            state = self.advance(state)

    @cute.jit
    def consumer_start(self, scheduler, mD: cute.Tensor, num_k_tiles, warpgroup_idx):
        """Return a consumer's first pipeline state, and the indices of its work tiles: first, stride and end.

        In ping-pong a warpgroup has every other one of its CTA's work tiles, and warpgroup 0 multiplies first.
        """
        # In a dynamic `if` the DSL would treat `scheduler` as an SSA value: bind the method before it.
        k_tile_count = scheduler.k_tile_count
        start, stride, end = scheduler.work(mD, num_k_tiles)
        state = self.consumer_state()
        if cutlass.const_expr(self.pingpong):
            stage, phase = state
            if warpgroup_idx == 1:
                skipped_k_tiles = k_tile_count(mD, start, num_k_tiles)
                stage, phase = skipped_k_tiles % self.num_stages, skipped_k_tiles // self.num_stages % 2
                cute.arch.barrier_arrive(barrier_id=self.order_barrier, number_of_threads=CONSUMERS * WARPGROUP)
            state = PipelineState(stage, phase)
            start, stride = start + warpgroup_idx * stride, CONSUMERS * stride
        elif cutlass.const_expr(self.takes_turns) and warpgroup_idx == 1:
            cute.arch.barrier_arrive(barrier_id=self.order_barrier, number_of_threads=CONSUMERS * WARPGROUP)
        return state, start, stride, end

    def fragments(
        self, operands: OperandStages, make_tiled_mma: Callable[[], Any], smem_ab: Any, warpgroup_idx: Any, acc: Any
    ) -> Any:
        """Return a warpgroup's fragments, as `OperandStages.fragments`; `make_tiled_mma` makes the instruction."""
        return operands.fragments(make_tiled_mma(), smem_ab, warpgroup_idx, acc)

    def of_tile(self, fragments: Any, mD: Any, coord: Any) -> Any:
        """Return the fragments of a tile of D; here all have the same."""
        del mD, coord
        return fragments

    @cute.jit
    def multiply(self, fragments, barriers, state, num_k_tiles, warpgroup_idx, release, during=None):
        """Multiply k-tiles as they arrive, in ping-pong within the order barrier; return the next state.

        Parameters
        ----------
        fragments : Fragments
            The instruction, operands and accumulators. The first wgmma overwrites the accumulators.
        barriers : Barriers
            State of the pipeline.
        state : PipelineState
            The consumer's.
        num_k_tiles : Int32
            Number of k-tiles.
        warpgroup_idx : Int32
            The warpgroup's index.
        release : callable
            ``release(empty, stage)`` arrives at the empty barriers of a stage.
        during : callable, optional
            ``during(k)`` is called while the tensor cores multiply the `k`-th of them, where `calls_during`.
        """
        mma, a, b, accumulators = fragments[:4]
        self.order_barrier_wait(warpgroup_idx)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        if cutlass.const_expr(self.may_be_empty):
            accumulators.fill(0)
        release_stage = state.stage
        for k in cutlass.range(num_k_tiles):
            stage = state.stage
            cute.arch.mbarrier_wait(barriers.full + stage, state.phase)
            self.on_full(fragments, stage, num_k_tiles - k)
            issue_group(k_block_mmas(mma, a, b, stage), accumulators)
            if cutlass.const_expr(during is not None):
                during(k)
            # ACCUMULATE is loop-carried state, which the DSL tracks only if the loop body sets it.
            mma.set(warpgroup.Field.ACCUMULATE, True)
            # With one group in flight the one before it is complete.
            warpgroup.wait_group(1)
            if k > 0:
                release(barriers.empty, release_stage)
            release_stage = stage
            state = self.advance(state)
        self.order_barrier_arrive(warpgroup_idx)
        if cutlass.const_expr(self.may_be_empty):
            warpgroup.wait_group(0)
            if num_k_tiles > 0:
                release(barriers.empty, release_stage)
        else:
            wait_group_and_release(0, release, barriers.empty, (release_stage,))
        return state

    @cute.jit
    def wait_full(self, barriers, state):
        """Wait until the stage of a consumer's state is full."""
        cute.arch.mbarrier_wait(barriers.full + state.stage, state.phase)

    @cute.jit
    def release_unread(self, barriers, state, num_k_tiles, release):
        """Release k-tiles that a warpgroup does not multiply, as they arrive; return the next state.

        The parameters are those of `multiply`.
        """
        for _ in cutlass.range(num_k_tiles):
            cute.arch.mbarrier_wait(barriers.full + state.stage, state.phase)
            release(barriers.empty, state.stage)
            state = self.advance(state)
        return state

    def on_full(self, fragments: Any, stage: Any, k_tiles_left: Any) -> None:
        """Change a full stage before it is multiplied, by all threads that read it; here it stays as it is.

        Parameters
        ----------
        fragments : Fragments
            As of `multiply`.
        stage, k_tiles_left : Int32
            The stage, and how many k-tiles of the tile are left, this one included.
        """
        del fragments, stage, k_tiles_left

    @cute.jit
    def order_barrier_wait(self, warpgroup_idx):
        """Ping-pong: wait until the other warpgroup has issued all wgmma of its work tile."""
        if cutlass.const_expr(self.pingpong):
            cute.arch.barrier(barrier_id=self.order_barrier + warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP)

    @cute.jit
    def order_barrier_arrive(self, warpgroup_idx):
        """Ping-pong: let the other warpgroup issue the wgmma of its work tile."""
        if cutlass.const_expr(self.pingpong):
            cute.arch.barrier_arrive(
                barrier_id=self.order_barrier + 1 - warpgroup_idx, number_of_threads=CONSUMERS * WARPGROUP
            )


@cute.jit
def release_local(empty, stage, threads: cutlass.Constexpr[int] = WARPGROUP):
    """Release a stage to this CTA's producer, by one of so many threads."""
    tid, _, _ = cute.arch.thread_idx()
    if tid % threads == 0:
        cute.arch.mbarrier_arrive(empty + stage)


@cute.jit
def release_cluster(scheduler, empty, stage, threads: cutlass.Constexpr[int] = WARPGROUP):
    """Arrive at the empty barrier of each CTA in this CTA's column and row of the cluster.

    Their loads reach this CTA's stage. Of so many threads, a warpgroup or a warp, the i-th signals the i-th: those of
    the column, this CTA among them, then the others of the row.
    """
    ctas_m, ctas_n = cutlass.const_expr(scheduler.cluster_m), cutlass.const_expr(scheduler.cluster_n)
    if cutlass.const_expr(not scheduler.is_multicast):
        release_local(empty, stage, threads)
    else:
        tid, _, _ = cute.arch.thread_idx()
        index = tid % threads
        row, col = scheduler.cta_coord_in_cluster()
        other_col = index - ctas_m
        other_col = other_col + 1 if other_col >= col else other_col
        cta = col * ctas_m + index if index < ctas_m else other_col * ctas_m + row
        cta = cta + scheduler.first_of_part()
        if index < ctas_m + ctas_n - 1:
            cute.arch.mbarrier_arrive(empty + stage, cta)


def multicast_ctas_a(scheduler: Any, row: Any) -> Any:
    """Return the CTAs that receive a load of A, those of this row of the cluster: first, stride and count."""
    if scheduler.cluster_n == 1:
        return None
    return row + scheduler.first_of_part(), scheduler.cluster_m, scheduler.cluster_n


def multicast_ctas_b(scheduler: Any, col: Any) -> Any:
    """Return the CTAs that receive a load of B, those of this column of the cluster: first, stride and count."""
    if scheduler.cluster_m == 1:
        return None
    return col * scheduler.cluster_m + scheduler.first_of_part(), 1, scheduler.cluster_m
