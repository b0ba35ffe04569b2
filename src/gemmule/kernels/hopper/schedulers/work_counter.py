"""Dynamic tile scheduling: a counter in device memory gives a CTA's next work tile.

The producer warp adds one to the counter when it has issued all loads of a work tile, and leaves the next index in a
ring in shared memory, where the consumers read it. CTAs whose tiles are short compute more of them.

The counter is set to 0 by the CTA of the first tile, which sets a flag then, as those of stream-K
(`stream_k_workspaces`): launches need no zeros before them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cutlass import Int32, Int64, cute

from gemmule.kernels.hopper.mainloops.pipeline import Pipeline
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.stream_k_fixup import reset_flag, wait_for_flag
from gemmule.kernels.parts.schedulers.stream_k_workspaces import FLAG_BYTES, READY

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

    def init_ring(self, ring: Ring) -> None:
        """Initialise the barriers of the ring, by one thread."""
        self.init(ring.barriers, 1, CONSUMERS * WARPGROUP)

    @cute.jit
    def begin(self, counter: cute.Tensor, start):
        """Set the counter to 0, by the producer warp of the CTA whose first work tile is the first of all."""
        if start == 0 and cute.arch.lane_idx() == 0:
            flag, number = _places(counter)
            cute.arch.inline_ptx("st.global.b64 [{$r0}], {$r1};", read_only_args=[number, Int64(0)])
            cute.arch.inline_ptx("st.release.gpu.global.b64 [{$r0}], {$r1};", read_only_args=[flag, Int64(READY)])

    @cute.jit
    def fetch(self, counter: cute.Tensor, tiles):
        """Add one to the counter, by a whole warp; return what it was.

        There is one fetch for each tile: the last one resets the flag.
        """
        before = Int32(0)
        if cute.arch.lane_idx() == 0:
            flag, number = _places(counter)
            wait_for_flag(flag)
            before = cute.arch.inline_ptx(
                "atom.relaxed.gpu.global.add.u64 {$w0}, [{$r0}], {$r1};",
                write_only_types=[Int64], read_only_args=[number, Int64(1)],
            ).to(Int32)  # fmt: skip
            if before == tiles - 1:
                reset_flag(flag)
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


def _places(counter: Any) -> tuple[Any, Any]:
    """Return the addresses of the counter's flag and of its number."""
    address = counter.iterator.toint()
    return address, address + FLAG_BYTES
