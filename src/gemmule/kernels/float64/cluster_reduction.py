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
    blocks = cutlass.const_expr(cute.size(rC, mode=[1]))
    start = _own(partials)
    for j in cutlass.range_constexpr(cute.size(rC, mode=[2])):
        for i in cutlass.range_constexpr(blocks):
            for half in cutlass.range_constexpr(2):
                number = cutlass.const_expr((j * blocks + i) * 2 + half)
                cute.arch.inline_ptx(
                    "st.shared.v2.f64 [{$r0}], {{$r1}, {$r2}};",
                    read_only_args=[start + number * threads * _BYTES, *(rC[2 * half + v, i, j] for v in range(2))],
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
    blocks, columns = cutlass.const_expr((cute.size(out, mode=[1]), cute.size(out, mode=[2])))
    start = _own(partials) + rank * (columns * blocks * 2 * threads * _BYTES)
    for cta in cutlass.range_constexpr(ctas):
        there = cute.arch.inline_ptx(
            "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
            write_only_types=[Int32],
            read_only_args=[start, Int32(cta)],
        )
        for j in cutlass.range_constexpr(columns):
            for i in cutlass.range_constexpr(blocks):
                for half in cutlass.range_constexpr(2):
                    number = cutlass.const_expr((j * blocks + i) * 2 + half)
                    found = cute.arch.inline_ptx(
                        "ld.shared::cluster.v2.f64 {{$w0}, {$w1}}, [{$r0}];",
                        write_only_types=[Float64] * 2,
                        read_only_args=[there + number * threads * _BYTES],
                    )
                    for v in cutlass.range_constexpr(2):
                        place = cutlass.const_expr(2 * half + v)
                        out[place, i, j] = found[v] if cta == 0 else out[place, i, j] + found[v]


@cute.jit
def _own(partials):
    """Return the address of this thread's first pair."""
    tid, _, _ = cute.arch.thread_idx()
    return partials + tid * _BYTES
