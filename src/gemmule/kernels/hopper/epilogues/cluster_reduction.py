"""Sums of a tile that the CTAs of a cluster made of parts of K: each adds up its columns, in the order of the CTAs."""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute

#: Threads that hold a block of 64 rows, and bytes that one of them sends at once.
_THREADS, _BYTES = 128, 16


@cute.jit
def send_sums(sums: cute.Tensor, slots, barrier, rank, ctas: cutlass.Constexpr[int], blocks: cutlass.Constexpr[int]):
    """Send every CTA of the cluster its columns of this CTA's sums: the first CTA gets the first columns.

    Parameters
    ----------
    sums : Tensor
        This thread's registers of `blocks` blocks of 64 rows, flat, as wgmma leaves them.
    slots : Int32
        Where sums arrive in shared memory, the same in every CTA: as many bytes as `sums` has, of all threads.
    barrier : Int32
        The barrier in shared memory that counts them.
    rank : Int32
        This CTA's number in the cluster.
    ctas, blocks : int
        CTAs of the cluster; blocks of rows.
    """
    lane, part, quads = _shape(sums, ctas, blocks)
    mine = slots + (rank * (blocks * quads * _THREADS) + lane) * _BYTES
    for peer in cutlass.range_constexpr(ctas):
        target, told = _in_cta(mine, peer), _in_cta(barrier, peer)
        for block in cutlass.range_constexpr(blocks):
            for quad in cutlass.range_constexpr(quads):
                first = block * part * ctas + peer * part + 4 * quad
                cute.arch.inline_ptx(
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                    "[{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}}, [{$r5}];",
                    read_only_args=[
                        target + (block * quads + quad) * _THREADS * _BYTES,
                        *(sums[first + v] for v in range(4)),
                        told,
                    ],
                )


@cute.jit
def add_sums(out: cute.Tensor, slots, ctas: cutlass.Constexpr[int]):
    """Add up what has arrived, that of the first CTA first.

    Parameters
    ----------
    out : Tensor
        This thread's registers of the columns of this CTA, flat.
    slots, ctas
        As of `send_sums`.
    """
    tid, _, _ = cute.arch.thread_idx()
    quads = cute.size(out) // 4
    start = slots + tid % _THREADS * _BYTES
    for cta in cutlass.range_constexpr(ctas):
        for quad in cutlass.range_constexpr(quads):
            arrived = cute.arch.inline_ptx(
                "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                write_only_types=[out.element_type] * 4,
                read_only_args=[start + (cta * quads + quad) * _THREADS * _BYTES],
            )
            for v in cutlass.range_constexpr(4):
                out[4 * quad + v] = arrived[v] if cta == 0 else out[4 * quad + v] + arrived[v]


@cute.jit
def _shape(sums, ctas: cutlass.Constexpr[int], blocks: cutlass.Constexpr[int]):
    """Return this thread's number among those that share its blocks, the sums and quads of a CTA's columns of one."""
    tid, _, _ = cute.arch.thread_idx()
    part = cutlass.const_expr(cute.size(sums) // (ctas * blocks))
    return tid % _THREADS, part, part // 4


@cute.jit
def _in_cta(address, rank: cutlass.Constexpr[int]):
    """Return the address of the same place in another CTA's shared memory."""
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[address, Int32(rank)],
    )
