"""Dynamic tile scheduling: a counter in device memory says which work tile a CTA, or a cluster, computes next.

The producer warp adds one to the counter when it has issued all loads of a work tile, and leaves the next index in a
ring in shared memory, where the consumers read it. CTAs whose tiles are short compute more of them. Of a cluster the
first CTA does so for all.

The counter is set to 0 by the CTA of the first tile, which sets a flag then, as those of stream-K
(`stream_k_workspaces`): launches need no zeros before them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Int64, cute

from gemmule.kernels.hopper.mainloops.pipeline import Pipeline, PipelineState
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.stream_k_fixup import reset_flag, wait_for_flag
from gemmule.kernels.parts.schedulers.stream_k_workspaces import FLAG_BYTES, READY

_SLOTS, _INDEX_BYTES = 4, 4


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

    def is_leader(self) -> Any:
        """Return whether this CTA fetches."""
        return True

    @cute.jit
    def begin(self, counter: cute.Tensor, start):
        """Set the counter to 0, by the producer warp of the CTA whose first work tile is the first of all."""
        if self.is_leader() and start == 0 and cute.arch.lane_idx() == 0:
            flag, number = _places(counter)
            cute.arch.inline_ptx("st.global.b64 [{$r0}], {$r1};", read_only_args=[number, Int64(0)])
            cute.arch.inline_ptx("st.release.gpu.global.b64 [{$r0}], {$r1};", read_only_args=[flag, Int64(READY)])

    @cute.jit
    def fetch(self, counter: cute.Tensor, tiles):
        """Add one to the counter, by a whole warp; return what it was.

        There is one fetch for each tile: the last one resets the flag.
        """
        before = Int32(0)
        if self.is_leader() and cute.arch.lane_idx() == 0:
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
    def send(self, ring, state, work_index):
        """Leave an index to the consumers, by the producer warp."""
        cute.arch.mbarrier_wait(ring.barriers.empty + state.stage, state.phase)
        with cute.arch.elect_one():
            ring.indices[state.stage] = work_index
            cute.arch.mbarrier_arrive(ring.barriers.full + state.stage)

    def receive(self, ring: Ring, state: PipelineState, work_index: Any) -> tuple[Any, PipelineState]:
        """Return what was sent, and the producer's next state."""
        del ring
        return work_index, self.advance(state)

    @cute.jit
    def read(self, ring, state):
        """Wait for the next index; return it and the consumer's next state."""
        cute.arch.mbarrier_wait(ring.barriers.full + state.stage, state.phase)
        work_index = self.index(ring, state)
        self.release(ring, state)
        return work_index, self.advance(state)

    def index(self, ring: Ring, state: PipelineState) -> Any:
        """Return the index in a slot that is full, by a whole warp."""
        return ring.indices[state.stage]

    def release(self, ring: Ring, state: PipelineState) -> None:
        """Release a slot, by each thread that has read it."""
        cute.arch.mbarrier_arrive(ring.barriers.empty + state.stage)

    def tail(self, ring: Ring, state: PipelineState) -> None:
        """Stay resident, by the producer warp, until every remote arrival on the ring is in; there is none here."""
        del ring, state


class ClusterWorkCounter(WorkCounter):
    """As `WorkCounter`, for a cluster whose CTAs compute a work tile together, each a part.

    The producer of the first CTA, the leader, fetches an index and sends it to the ring of every CTA (`st.async`). Who
    reads it, the other producers among them, releases the leader's slot.

    Parameters
    ----------
    cluster_size : int
        CTAs of the cluster.
    """

    def __init__(self, cluster_size: int) -> None:
        super().__init__()
        self.cluster_size = cluster_size

    def init_ring(self, ring: Ring) -> None:
        """Initialise the barriers of the ring, by one thread."""
        self.init(ring.barriers, 1, self.cluster_size * CONSUMERS * WARPGROUP + self.cluster_size - 1)

    @cute.jit
    def rank(self):
        """Return this CTA's rank in the cluster; the leader's is 0."""
        cta, _, _ = cute.arch.block_idx()
        return cta % self.cluster_size

    def is_leader(self) -> Any:
        """Return whether this CTA fetches for the cluster."""
        return self.rank() == 0

    @cute.jit
    def send(self, ring, state, work_index):
        """Expect the next index, by a CTA's producer warp; the leader's sends it to all of them."""
        full, lane = ring.barriers.full + state.stage, cute.arch.lane_idx()
        if self.rank() == 0:
            cute.arch.mbarrier_wait(ring.barriers.empty + state.stage, state.phase)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, _INDEX_BYTES)
        if self.rank() == 0 and lane < self.cluster_size:
            address = ring.indices.iterator.toint() + state.stage * _INDEX_BYTES
            cute.arch.inline_ptx(
                "{\n.reg .b32 remote_addr, remote_mbar;\nmapa.shared::cluster.u32 remote_addr, {$r0}, {$r3};\n"
                "mapa.shared::cluster.u32 remote_mbar, {$r1}, {$r3};\n"
                "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 "
                "[remote_addr], {$r2}, [remote_mbar];\n}",
                read_only_args=[address, full.toint(), work_index, lane],
            )

    @cute.jit
    def receive(self, ring, state, work_index):
        """Return what the leader sent, which it has as `work_index`, and the producer's next state."""
        if self.rank() != 0:
            cute.arch.mbarrier_wait(ring.barriers.full + state.stage, state.phase ^ 1)
            work_index = self.index(ring, state)
            with cute.arch.elect_one():
                self.release(ring, state)
        return work_index, self.advance(state)

    def index(self, ring: Ring, state: PipelineState) -> Any:
        """Return the index in a slot that is full, by a whole warp.

        The shuffle needs the loads of all lanes: none is in flight when the slot is released, which `st.async` may
        overwrite then.
        """
        return cute.arch.shuffle_sync(ring.indices[state.stage], 0)

    def release(self, ring: Ring, state: PipelineState) -> None:
        """Release the leader's slot, by each thread that has read this CTA's."""
        cute.arch.mbarrier_arrive(ring.barriers.empty + state.stage, 0)

    @cute.jit
    def tail(self, ring, state):
        """Stay resident, by the leader's producer warp, until every remote arrival on the ring's barriers is in."""
        if self.rank() == 0:
            self.wait_until_empty(ring, state)

    @cute.jit
    def wait_until_empty(self, ring, state):
        """Wait until every slot is released."""
        for _ in cutlass.range(self.num_stages):
            cute.arch.mbarrier_wait(ring.barriers.empty + state.stage, state.phase)
            state = self.advance(state)


def _places(counter: Any) -> tuple[Any, Any]:
    """Return the addresses of the counter's flag and of its number."""
    address = counter.iterator.toint()
    return address, address + FLAG_BYTES
