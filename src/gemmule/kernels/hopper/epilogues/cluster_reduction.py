"""Split-K within a cluster: CTAs reduce-scatter the partial sums of a tile through distributed shared memory (DSMEM).

Each CTA receives all parts of K of its own columns, and adds them in the order of the CTAs' ranks: deterministic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from gemmule.core.dataclass import dataclass
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.kernels.parts.hopper_facts import WARPGROUP

#: Bytes that a thread sends at once.
_BYTES = 16


class ReduceBuffer(NamedTuple):
    """Shared memory for the cluster's partial sums, and its barriers, for all warpgroups."""

    partials: Any  #: Pointer. Partial sums of all CTAs, by warpgroup.
    #: full, empty: Pointer. Barriers of each warpgroup, as of `WarpgroupReduceBuffer`.
    full: Any
    empty: Any


class WarpgroupReduceBuffer(NamedTuple):
    """A warpgroup's part of the buffer, at the same address in every CTA."""

    address: Any  #: Int32. Address of the partial sums of all CTAs.
    full: Any  #: Pointer. The cluster's partial sums have arrived.
    empty: Any  #: Pointer. Every CTA of the cluster has added what this one sent for the tile before.


@dataclass(frozen=True)
class ClusterReduction:
    """The reduce-scatter of a warpgroup's partial sums among the CTAs of a cluster."""

    cluster_k: int  #: CTAs of the cluster, each with a part of K.
    mma_tiles_m: int  #: wgmma tiles of 64 rows that the warpgroup has of a CTA tile.
    nbytes: int  #: Bytes of its accumulators.
    stride: int = 1  #: From the rank in the cluster of a CTA to that of the one with the next part of K.

    def barriers(self, smem: Any) -> tuple[Any, Any]:
        """Allocate full and empty barriers."""
        return smem.allocate_array(cutlass.Int64, CONSUMERS), smem.allocate_array(cutlass.Int64, CONSUMERS)

    @cute.jit
    def init(self, barriers):
        """Initialise the barriers, by one thread."""
        full, empty = barriers
        for w in cutlass.range_constexpr(CONSUMERS):
            cute.arch.mbarrier_init(full + w, 1)
            cute.arch.mbarrier_init(empty + w, self.cluster_k)

    def allocate(self, smem: Any, barriers: tuple[Any, Any]) -> ReduceBuffer | None:
        """Allocate the buffer, where the cluster splits K."""
        if self.cluster_k == 1:
            return None
        return ReduceBuffer(smem.allocate(self.nbytes * CONSUMERS, 1024), *barriers)

    def of_warpgroup(self, reduce_buffer: ReduceBuffer | None, warpgroup_idx: Any) -> WarpgroupReduceBuffer | None:
        """Return a warpgroup's part of the buffer."""
        if reduce_buffer is None:
            return None
        partials, full, empty = reduce_buffer
        address = partials.toint() + warpgroup_idx * self.nbytes
        return WarpgroupReduceBuffer(address, full + warpgroup_idx, empty + warpgroup_idx)

    @cute.jit
    def reduce(self, accumulators: cute.Tensor, reduce_buffer, phase, barrier_id, has_next):
        """Return this CTA's columns of a tile, all parts of K added.

        Parameters
        ----------
        accumulators : Tensor
            This thread's partial sums of all columns, flat, as wgmma leaves them.
        reduce_buffer : WarpgroupReduceBuffer
            Accumulators of this warpgroup.
        phase : Int32
            0 for a CTA's first tile, then alternating.
        barrier_id : Int32
            The warpgroup's named barrier.
        has_next : Boolean
            Whether there is another tile.
        """
        address, full, empty = reduce_buffer
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        thread_in_warpgroup = tid % WARPGROUP
        cute.arch.mbarrier_wait(empty, phase ^ 1)
        if thread_in_warpgroup == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.nbytes)
        first, cta_k = self.first_peer(cta), self.cta_k(cta)
        self.send(accumulators, address, full.toint(), cta_k, first)
        cute.arch.mbarrier_wait(full, phase)
        layout = cute.make_layout(cute.size(accumulators) // self.cluster_k)
        reduced = cute.make_rmem_tensor(layout, accumulators.element_type)
        self.add(reduced, address)
        # No remote arrival may be in flight to a CTA that has ended: after the last tile nobody waits for one.
        if has_next:
            cute.arch.barrier(barrier_id=barrier_id, number_of_threads=WARPGROUP)
            if thread_in_warpgroup < self.cluster_k:
                cute.arch.mbarrier_arrive(empty, first + thread_in_warpgroup * self.stride)
        return reduced

    def first_peer(self, cta: Any) -> Any:
        """Return the rank in the cluster of the CTA with the first part of K of this CTA's tile."""
        return 0 if self.stride == 1 else cta % self.stride

    def cta_k(self, cta: Any) -> Any:
        """Return which part of K a CTA has."""
        return cta % self.cluster_k if self.stride == 1 else cta // self.stride % self.cluster_k

    @cute.jit
    def send(self, accumulators: cute.Tensor, address, barrier, cta_k, first_peer):
        """Send every CTA that shares the tile its columns of this CTA's partial sums: the first gets the first ones."""
        tid, _, _ = cute.arch.thread_idx()
        thread_in_warpgroup = tid % WARPGROUP
        per_mma_tile = cutlass.const_expr(cute.size(accumulators) // (self.cluster_k * self.mma_tiles_m))
        vectors = cutlass.const_expr(per_mma_tile // 4)
        source = address + (cta_k * (self.mma_tiles_m * vectors * WARPGROUP) + thread_in_warpgroup) * _BYTES
        for peer in cutlass.range_constexpr(self.cluster_k):
            rank = first_peer + peer * self.stride
            target, remote_barrier = _in_cta(source, rank), _in_cta(barrier, rank)
            for mma_tile in cutlass.range_constexpr(self.mma_tiles_m):
                for vector in cutlass.range_constexpr(vectors):
                    first = (mma_tile * self.cluster_k + peer) * per_mma_tile + 4 * vector
                    cute.arch.inline_ptx(
                        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                        "[{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}}, [{$r5}];",
                        read_only_args=[
                            target + (mma_tile * vectors + vector) * WARPGROUP * _BYTES,
                            *(accumulators[first + v] for v in range(4)),
                            remote_barrier,
                        ],
                    )

    @cute.jit
    def add(self, reduced: cute.Tensor, address):
        """Add the partial sums that have arrived, that of the first CTA first."""
        tid, _, _ = cute.arch.thread_idx()
        vectors = cute.size(reduced) // 4
        start = address + tid % WARPGROUP * _BYTES
        for peer in cutlass.range_constexpr(self.cluster_k):
            for vector in cutlass.range_constexpr(vectors):
                received = cute.arch.inline_ptx(
                    "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                    write_only_types=[reduced.element_type] * 4,
                    read_only_args=[start + (peer * vectors + vector) * WARPGROUP * _BYTES],
                )
                for v in cutlass.range_constexpr(4):
                    reduced[4 * vector + v] = received[v] if peer == 0 else reduced[4 * vector + v] + received[v]


@cute.jit
def _in_cta(address, rank):
    """Return the address of the same offset in another CTA's shared memory."""
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[address, Int32(rank)],
    )
