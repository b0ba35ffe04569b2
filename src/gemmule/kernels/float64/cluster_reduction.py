"""Split-K within a cluster: each CTA reduces some columns of a tile's partial sums, in the order of the CTAs."""

from __future__ import annotations

import cutlass
from cutlass import Float64, Int32, cute

#: Bytes that a thread moves at once: two contiguous elements of a row.
_BYTES = 16


@cute.jit
def store_partials(rC: cute.Tensor, partials, threads: cutlass.Constexpr[int]):
    """Store a thread's partial sums in shared memory, for the cluster's other CTAs.

    Parameters
    ----------
    rC : Tensor
        Registers of float64, (4, blocks, columns).
    partials : Int32
        Their address in shared memory, the same in every CTA: as many bytes as all threads have partial sums.
    threads : int
        Threads of the CTA.
    """
    values, start = cute.make_tensor(rC.iterator, cute.make_layout(cute.size(rC))), _own(partials)
    for number in cutlass.range_constexpr(cute.size(rC) // 2):
        cute.arch.inline_ptx(
            "st.shared.v2.f64 [{$r0}], {{$r1}, {$r2}};",
            read_only_args=[start + number * threads * _BYTES, *(values[2 * number + v] for v in range(2))],
        )


@cute.jit
def reduce_columns(out: cute.Tensor, partials, rank, ctas: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]):
    """Add the partial sums of some columns of all CTAs of the cluster, those of the first CTA first.

    Parameters
    ----------
    out : Tensor
        Registers of float64, (4, blocks, columns): the CTA's part of the columns.
    partials, threads
        As of `store_partials`.
    rank, ctas : int
        This CTA's rank in the cluster, whose first CTA has the first columns, and the CTAs of the cluster.
    """
    values = cute.make_tensor(out.iterator, cute.make_layout(cute.size(out)))
    start = _own(partials) + rank * (cute.size(out) // 2 * threads * _BYTES)
    for cta in cutlass.range_constexpr(ctas):
        there = cute.arch.inline_ptx(
            "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
            write_only_types=[Int32],
            read_only_args=[start, Int32(cta)],
        )
        for number in cutlass.range_constexpr(cute.size(out) // 2):
            found = cute.arch.inline_ptx(
                "ld.shared::cluster.v2.f64 {{$w0}, {$w1}}, [{$r0}];",
                write_only_types=[Float64] * 2,
                read_only_args=[there + number * threads * _BYTES],
            )
            for v in cutlass.range_constexpr(2):
                place = cutlass.const_expr(2 * number + v)
                values[place] = found[v] if cta == 0 else values[place] + found[v]


@cute.jit
def _own(partials):
    """Return the address of this thread's first pair."""
    tid, _, _ = cute.arch.thread_idx()
    return partials + tid * _BYTES
