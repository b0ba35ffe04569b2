"""Split-K within a cluster: a tile's partial sums are added in the order of the CTAs.

Each CTA reduces a part of the tile, or the first CTA all of it.
"""

from __future__ import annotations

import itertools
from typing import Any

import cutlass
from cutlass import Int32, cute

#: Bytes that a thread moves at once, and registers for partial sums that are in flight.
_BYTES, _REGISTERS = 16, 96


@cute.jit
def reduce_in_cluster(
    rPart: cute.Tensor, rC: cute.Tensor, stages, part, ctas: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]
):
    """Store this CTA's partial sums for the cluster, and reduce the part of the tile that it will write.

    Parameters
    ----------
    rPart, rC : Tensor
        Registers of 32 or 64 bits: the reduced part, and a thread's partial sums, of which `rPart` becomes
        the `part`-th piece of its size, in the order of the layout.
    stages : int
        Address in shared memory, the same in every CTA, of as many bytes as all threads have partial sums; what is
        there is overwritten.
    part, ctas : int
        The part that this CTA reduces, its rank or one that several reduce, and the CTAs of the cluster.
    threads : int
        Threads of the CTA.
    """
    # Partial sums overwrite the stages.
    cute.arch.sync_threads()
    _store_partials(rC, stages, threads)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    _reduce_part(rPart, stages, part, ctas, threads)
    # A CTA's shared memory must outlive the others' reads.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def reduce_in_first(rC: cute.Tensor, stages, rank, ctas: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]):
    """Reduce the partial sums of all CTAs of a cluster in the registers of its first CTA.

    Parameters
    ----------
    rC : Tensor
        A thread's partial sums, of 32 or 64 bits; in the first CTA they become those of all CTAs.
    rank : Int32
        This CTA's rank.
    stages, ctas, threads
        As of `reduce_in_cluster`.
    """
    cute.arch.sync_threads()
    _store_partials(rC, stages, threads)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 0:
        start = _own(stages)
        together = cutlass.const_expr(max(1, min(_REGISTERS // cute.size(rC), ctas - 1)))
        groups = cutlass.const_expr((ctas - 1) // together)
        # Not unrolled: the loads of all CTAs at once would take all registers.
        for group in cutlass.range(groups, unroll=1):
            _add_of_ctas(rC, start, 1 + group * together, together, threads)
        if cutlass.const_expr(groups * together < ctas - 1):
            _add_of_ctas(rC, start, Int32(1 + groups * together), ctas - 1 - groups * together, threads)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


def _add_of_ctas(rC: Any, start: Any, first: Any, count: int, threads: int) -> None:
    """Add a thread's partial sums of `count` CTAs from `first` on, in their order, after the loads of all."""
    values = cute.make_tensor(rC.iterator, cute.make_layout(cute.size(rC)))
    vectors = cute.size(rC) * rC.element_type.width // 8 // _BYTES
    theirs = [
        [_load(rC, there + number * threads * _BYTES) for number in range(vectors)]
        for there in [_in_cta(start, first + cta) for cta in range(count)]
    ]
    for found in theirs:
        for place, value in enumerate(itertools.chain.from_iterable(found)):
            values[place] = values[place] + value


@cute.jit
def _store_partials(rC: cute.Tensor, partials, threads: cutlass.Constexpr[int]):
    values, start = cute.make_tensor(rC.iterator, cute.make_layout(cute.size(rC))), _own(partials)
    length, width = cutlass.const_expr((_BYTES * 8 // rC.element_type.width, rC.element_type.width))
    words = cutlass.const_expr(", ".join(f"{{$r{1 + v}}}" for v in range(length)))
    for number in cutlass.range_constexpr(cute.size(rC) // length):
        cute.arch.inline_ptx(
            f"st.shared.v{length}.b{width} [{{$r0}}], {{{words}}};",
            read_only_args=[start + number * threads * _BYTES, *(values[length * number + v] for v in range(length))],
        )


@cute.jit
def _reduce_part(out: cute.Tensor, partials, part, ctas: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]):
    """Add a part of the partial sums of all CTAs of the cluster, those of the first CTA first."""
    length = cutlass.const_expr(_BYTES * 8 // out.element_type.width)
    values = cute.make_tensor(out.iterator, cute.make_layout(cute.size(out)))
    start = _own(partials) + part * (cute.size(out) // length * threads * _BYTES)
    for cta in cutlass.range_constexpr(ctas):
        there = _in_cta(start, Int32(cta))
        for number in cutlass.range_constexpr(cute.size(out) // length):
            found = _load(out, there + number * threads * _BYTES)
            for v in cutlass.range_constexpr(length):
                place = cutlass.const_expr(length * number + v)
                values[place] = found[v] if cta == 0 else values[place] + found[v]


@cute.jit
def _in_cta(address, cta):
    """Return the address in the cluster of what a CTA has at an address of its own."""
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[address, cta]
    )


def _load(out: Any, address: Any) -> Any:
    """Load a vector of elements of the type of `out` from the cluster's shared memory."""
    length, width = _BYTES * 8 // out.element_type.width, out.element_type.width
    words = ", ".join(f"{{$w{v}}}" for v in range(length))
    return cute.arch.inline_ptx(
        f"ld.shared::cluster.v{length}.b{width} {{{words}}}, [{{$r0}}];",
        write_only_types=[out.element_type] * length,
        read_only_args=[address],
    )


@cute.jit
def _own(partials):
    """Return the address of this thread's first vector."""
    tid, _, _ = cute.arch.thread_idx()
    return partials + tid * _BYTES
