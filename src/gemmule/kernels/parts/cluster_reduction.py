"""Split-K within a cluster or a CTA: a tile's partial sums are added in the order of the CTAs, or of groups of warps.

Each CTA, or group, reduces a part of the tile.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from gemmule.kernels.parts.cluster_memory import cluster_address, load_shared

#: Bytes that a thread moves at once.
_BYTES = 16


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
    partials = [cluster_address(stages, Int32(cta)) for cta in range(ctas)]
    _reduce_part(rPart, partials, part, threads, "shared::cluster")
    # A CTA's shared memory must outlive the others' reads.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def reduce_in_cta(
    rPart: cute.Tensor, rC: cute.Tensor, stages, part, parts: cutlass.Constexpr[int], threads: cutlass.Constexpr[int]
):
    """Exchange the partial sums of a CTA's groups of warps, and add those of this thread's part in their order.

    Parameters
    ----------
    rPart, rC, stages : Tensor and Int32
        As of `reduce_in_cluster`.
    part, parts : int
        The thread's group, and how many there are, of consecutive threads: each adds a part.
    threads : int
        Threads of the CTA.
    """
    # Partial sums overwrite the stages.
    cute.arch.sync_threads()
    _store_partials(rC, stages, threads)
    cute.arch.sync_threads()
    group = cutlass.const_expr(threads // parts * _BYTES)
    partials = [stages + (other - part) * group for other in range(parts)]
    _reduce_part(rPart, partials, part, threads, "shared")


@cute.jit
def sum_in_cluster(address, kind: cutlass.Constexpr[Any], length: cutlass.Constexpr[int], ctas: cutlass.Constexpr[int]):
    """Return `length` partial sums of each CTA of the cluster, added in the order of the CTAs, in registers.

    Parameters
    ----------
    address : Int32
        Address in shared memory, the same in every CTA, a multiple of their bytes, up to 16.
    kind : type
        Their type, of 32 or 64 bits.
    length, ctas : int
        Partial sums, and the CTAs of the cluster.
    """
    found = cute.make_rmem_tensor(cute.make_layout(length), kind)
    together = cutlass.const_expr(min(length, _BYTES * 8 // kind.width))
    for first in cutlass.range_constexpr(0, length, together):
        # The loads of all CTAs are issued before the first sum.
        addresses = [cluster_address(address + kind.width // 8 * first, Int32(cta)) for cta in range(ctas)]
        theirs = [load_shared(kind, one, together, "shared::cluster") for one in addresses]
        for v in cutlass.range_constexpr(together):
            total = theirs[0][v]
            for cta in cutlass.range_constexpr(1, ctas):
                total = total + theirs[cta][v]
            found[first + v] = total
    return found.load()


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
def _reduce_part(out: cute.Tensor, partials, part, threads: cutlass.Constexpr[int], space: cutlass.Constexpr[str]):
    """Add a part of the partial sums at each of several addresses, those at the first one first."""
    length = cutlass.const_expr(_BYTES * 8 // out.element_type.width)
    values = cute.make_tensor(out.iterator, cute.make_layout(cute.size(out)))
    place = _own(part * (cute.size(out) // length * threads * _BYTES))
    for other in cutlass.range_constexpr(len(partials)):
        there = partials[other] + place
        for number in cutlass.range_constexpr(cute.size(out) // length):
            found = load_shared(out.element_type, there + number * threads * _BYTES, length, space)
            for v in cutlass.range_constexpr(length):
                at = cutlass.const_expr(length * number + v)
                values[at] = found[v] if other == 0 else values[at] + found[v]


@cute.jit
def _own(partials):
    """Return the address of this thread's first vector."""
    tid, _, _ = cute.arch.thread_idx()
    return partials + tid * _BYTES
