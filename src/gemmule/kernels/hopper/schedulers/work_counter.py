"""Dynamic tile scheduling: a counter in device memory says which work tile a CTA computes next.

The producer warp adds one to the counter when it has issued all loads of a work tile, and leaves the next index in a
ring in shared memory, where the consumers read it. CTAs whose tiles are short compute more of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cutlass import Int32, cute

from gemmule.kernels.hopper.mainloops.pipeline import Pipeline
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP

_SLOTS = 4


class Ring(NamedTuple):
    """Barriers of the slots, and the indices of work tiles in them, in shared memory."""

    barriers: Any
    indices: Any


class WorkCounter(Pipeline):
    """A ring of indices between the producer warp and all consumers of a CTA."""

    def __init__(self) -> None:
        super().__init__(_SLOTS)

    def allocate(self, smem: Any) -> Ring:
        """Allocate the ring."""
        return Ring(self.barriers(smem), smem.allocate_tensor(Int32, cute.make_layout(_SLOTS), 4))

    @cute.jit
    def init_ring(self, ring):
        """Initialise the ring, by one warp; the CTA synchronises afterwards."""
        with cute.arch.elect_one():
            self.init(ring.barriers, 1, CONSUMERS * WARPGROUP)
        cute.arch.mbarrier_init_fence()

    @cute.jit
    def fetch(self, counter: cute.Tensor):
        """Add one to the counter, by a whole warp; return what it was."""
        before = Int32(0)
        if cute.arch.lane_idx() == 0:
            before = cute.arch.atomic_add(counter.iterator, Int32(1), sem="relaxed", scope="gpu")
        return cute.arch.shuffle_sync(before, 0)

    @cute.jit
    def publish(self, ring, state, work_index):
        """Leave an index to the consumers, by the producer warp; return its next state."""
        cute.arch.mbarrier_wait(ring.barriers.empty + state.stage, state.phase)
        with cute.arch.elect_one():
            ring.indices[state.stage] = work_index
            cute.arch.mbarrier_arrive(ring.barriers.full + state.stage)
        return self.advance(state)

    @cute.jit
    def read(self, ring, state):
        """Wait for the next index; return it and the consumer's next state."""
        cute.arch.mbarrier_wait(ring.barriers.full + state.stage, state.phase)
        work_index = ring.indices[state.stage]
        cute.arch.mbarrier_arrive(ring.barriers.empty + state.stage)
        return work_index, self.advance(state)
