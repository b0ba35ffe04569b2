"""Sums of a tile that the CTAs of a cluster made of parts of K: each adds up some columns, in the order of the CTAs."""

from __future__ import annotations

import cutlass
from cutlass import Float64, Int32, cute

#: Bytes that a thread moves at once: two neighbours of a row.
_BYTES = 16


@cute.jit
def put_sums(sums: cute.Tensor, slots, threads: cutlass.Constexpr[int]):
    """Store a thread's sums where the cluster's other CTAs find them.

    Parameters
    ----------
    sums : Tensor
        Registers of float64, (4, blocks, columns).
    slots : Int32
        Where they lie in shared memory, the same in every CTA: as many bytes as all threads have sums.
    threads : int
        Threads of the CTA.
    """
    blocks = cutlass.const_expr(cute.size(sums, mode=[1]))
    start = _own(slots)
    for j in cutlass.range_constexpr(cute.size(sums, mode=[2])):
        for i in cutlass.range_constexpr(blocks):
            for half in cutlass.range_constexpr(2):
                number = cutlass.const_expr((j * blocks + i) * 2 + half)
                cute.arch.inline_ptx(
                    "st.shared.v2.f64 [{$r0}], {{$r1}, {$r2}};",
                    read_only_args=[start + number * threads * _BYTES, *(sums[2 * half + v, i, j] for v in range(2))],
                )


@cute.jit
def add_columns(out: cute.Tensor, slots, rank, ctas: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]):
    """Add up what all CTAs of the cluster stored of some columns, that of the first CTA first.

    Parameters
    ----------
    out : Tensor
        Registers of float64, (4, blocks, columns): of the CTA's part of the columns.
    slots, threads
        As of `put_sums`.
    rank, ctas : int
        This CTA's number in the cluster, whose first CTA has the first columns, and the CTAs of the cluster.
    """
    blocks, columns = cutlass.const_expr((cute.size(out, mode=[1]), cute.size(out, mode=[2])))
    start = _own(slots) + rank * (columns * blocks * 2 * threads * _BYTES)
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
def _own(slots):
    """Return where this thread's first pair is."""
    tid, _, _ = cute.arch.thread_idx()
    return slots + tid * _BYTES
