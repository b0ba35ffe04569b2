"""Pipeline of stages in shared memory: its barriers, and the state of a producer or consumer."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute


class PipelineState(NamedTuple):
    """A position in the pipeline: the stage, and the phase of its barriers, which flips each time around."""

    stage: Any
    phase: Any


class Barriers(NamedTuple):
    """Full and empty barriers of a pipeline's stages."""

    full: Any
    empty: Any


@cute.jit
def sync_cluster():
    """Wait for all threads of the cluster."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


class Pipeline:
    """Stages that are used one after another, around and around.

    Parameters
    ----------
    num_stages : int
        Stages of the ring.
    """

    def __init__(self, num_stages: int) -> None:
        self.num_stages = num_stages

    def barriers(self, smem: Any) -> Barriers:
        """Allocate the full and the empty barriers of all stages."""
        return Barriers(*(smem.allocate_array(cutlass.Int64, self.num_stages) for _ in range(2)))

    @cute.jit
    def init(self, barriers, producer_arrivals: cutlass.Constexpr[int], consumer_arrivals: cutlass.Constexpr[int]):
        """Initialise the barriers, by one thread: full ones for producer, empty ones for consumer arrivals."""
        for s in cutlass.range_constexpr(self.num_stages):
            cute.arch.mbarrier_init(barriers.full + s, producer_arrivals)
            cute.arch.mbarrier_init(barriers.empty + s, consumer_arrivals)

    def producer_state(self) -> PipelineState:
        """Return a producer's first state: every stage is empty."""
        return PipelineState(Int32(0), Int32(1))

    def consumer_state(self) -> PipelineState:
        """Return a consumer's first state: no stage is full."""
        return PipelineState(Int32(0), Int32(0))

    @cute.jit
    def advance(self, state):
        """Return the next pipeline state."""
        stage, phase = state
        stage = stage + 1
        if stage == self.num_stages:
            stage = Int32(0)
            phase = phase ^ 1
        return PipelineState(stage, phase)

    def advance_by(self, state: PipelineState, num_k_tiles: Any) -> PipelineState:
        """Return the pipeline state after `num_k_tiles` k-tiles that others consume."""
        position = state.stage + num_k_tiles
        return PipelineState(position % self.num_stages, (state.phase + position // self.num_stages) % 2)
