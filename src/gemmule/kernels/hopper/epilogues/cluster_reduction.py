"""Split-K within a cluster: CTAs exchange partial sums of a tile through distributed shared memory.

Each CTA receives all parts of K of its own columns, and adds them in the order of the CTAs.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.hopper.tile_config import CONSUMERS, WARPGROUP

#: Bytes that a thread sends at once.
_BYTES = 16


class Exchange(NamedTuple):
    """Where partial sums arrive in shared memory of every CTA, and the barriers; of all warpgroups, or of one.

    Attributes
    ----------
    slots : Pointer or Int32
        Partial sums of all CTAs, by warpgroup; of one warpgroup their address.
    full : Pointer
        The cluster's partial sums have arrived.
    empty : Pointer
        Every CTA of the cluster has added what this one sent for the tile before.
    """

    slots: Any
    full: Any
    empty: Any


@dataclasses.dataclass(frozen=True)
class ClusterReduction:
    """The exchange of a warpgroup's partial sums.

    Attributes
    ----------
    ctas : int
        CTAs of the cluster, each with a part of K.
    blocks : int
        Blocks of 64 rows that the warpgroup has of a tile.
    nbytes : int
        Bytes of its accumulators.
    """

    ctas: int
    blocks: int
    nbytes: int

    def barriers(self, smem: Any) -> tuple[Any, Any]:
        """Allocate full and empty barriers."""
        return smem.allocate_array(cutlass.Int64, CONSUMERS), smem.allocate_array(cutlass.Int64, CONSUMERS)

    @cute.jit
    def init(self, barriers):
        """Initialise the barriers, by one thread."""
        full, empty = barriers
        for w in cutlass.range_constexpr(CONSUMERS):
            cute.arch.mbarrier_init(full + w, 1)
            cute.arch.mbarrier_init(empty + w, self.ctas)

    def allocate(self, smem: Any, barriers: tuple[Any, Any]) -> Exchange | None:
        """Allocate shared memory for partial sums, if they are exchanged."""
        if self.ctas == 1:
            return None
        return Exchange(smem.allocate(self.nbytes * CONSUMERS, 1024), *barriers)

    def of_warpgroup(self, exchange: Exchange | None, warpgroup_idx: Any) -> Exchange | None:
        """Return a warpgroup's part of the exchange."""
        if exchange is None:
            return None
        slots, full, empty = exchange
        return Exchange(slots.toint() + warpgroup_idx * self.nbytes, full + warpgroup_idx, empty + warpgroup_idx)

    @cute.jit
    def reduce(self, accumulators: cute.Tensor, exchange, phase, ctx, more):
        """Return this CTA's columns of a tile, all parts of K added.

        Parameters
        ----------
        accumulators : Tensor
            This thread's partial sums of all columns, flat, as wgmma leaves them.
        exchange : Exchange
            Of this warpgroup.
        phase : Int32
            0 for a CTA's first tile, then alternating.
        ctx : EpilogueContext
            For the warpgroup and its named barrier.
        more : Boolean
            Whether there is another tile.
        """
        slots, full, empty = exchange
        cta, _, _ = cute.arch.block_idx()
        tid, _, _ = cute.arch.thread_idx()
        cute.arch.mbarrier_wait(empty, phase ^ 1)
        if tid % WARPGROUP == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.nbytes)
        self.send(accumulators, slots, full.toint(), cta % self.ctas)
        cute.arch.mbarrier_wait(full, phase)
        out = cute.make_rmem_tensor(cute.make_layout(cute.size(accumulators) // self.ctas), accumulators.element_type)
        self.add(out, slots)
        # No remote arrival may be in flight to a CTA that has ended: after the last tile nobody waits for one.
        if more:
            cute.arch.barrier(barrier_id=ctx.barrier_id, number_of_threads=WARPGROUP)
            if tid % WARPGROUP < self.ctas:
                cute.arch.mbarrier_arrive(empty, tid % WARPGROUP)
        return out

    @cute.jit
    def send(self, accumulators: cute.Tensor, slots, barrier, rank):
        """Send every CTA of the cluster its columns of this CTA's partial sums: the first CTA gets the first ones."""
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % WARPGROUP
        part = cutlass.const_expr(cute.size(accumulators) // (self.ctas * self.blocks))
        quads = cutlass.const_expr(part // 4)
        source = slots + (rank * (self.blocks * quads * WARPGROUP) + lane) * _BYTES
        for peer in cutlass.range_constexpr(self.ctas):
            target, remote_barrier = _in_cta(source, peer), _in_cta(barrier, peer)
            for block in cutlass.range_constexpr(self.blocks):
                for quad in cutlass.range_constexpr(quads):
                    first = block * part * self.ctas + peer * part + 4 * quad
                    cute.arch.inline_ptx(
                        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                        "[{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}}, [{$r5}];",
                        read_only_args=[
                            target + (block * quads + quad) * WARPGROUP * _BYTES,
                            *(accumulators[first + v] for v in range(4)),
                            remote_barrier,
                        ],
                    )

    @cute.jit
    def add(self, out: cute.Tensor, slots):
        """Add the partial sums that have arrived, that of the first CTA first."""
        tid, _, _ = cute.arch.thread_idx()
        quads = cute.size(out) // 4
        start = slots + tid % WARPGROUP * _BYTES
        for cta in cutlass.range_constexpr(self.ctas):
            for quad in cutlass.range_constexpr(quads):
                received = cute.arch.inline_ptx(
                    "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                    write_only_types=[out.element_type] * 4,
                    read_only_args=[start + (cta * quads + quad) * WARPGROUP * _BYTES],
                )
                for v in cutlass.range_constexpr(4):
                    out[4 * quad + v] = received[v] if cta == 0 else out[4 * quad + v] + received[v]


@cute.jit
def _in_cta(address, rank: cutlass.Constexpr[int]):
    """Return the address of the same place in another CTA's shared memory."""
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[address, Int32(rank)],
    )
