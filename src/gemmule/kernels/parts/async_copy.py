"""Asynchronous copies from device memory into shared memory (cp.async), with zeros outside a matrix."""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute


@cute.jit
def copy_vector_async(target: cute.Pointer, source: cute.Pointer, length: cutlass.Constexpr[int], valid):
    """Copy `length` contiguous elements into shared memory, the first `valid` of them read and the others zero.

    Parameters
    ----------
    target, source : Pointer
        Addresses in shared and in device memory; both multiples of the copy's size, which is 4, 8 or 16 bytes. Where
        `valid` is 0 nothing is read: `source` may then be outside the matrix, still aligned.
    length : int
        Elements of the copy.
    valid : int or None
        Elements inside the matrix, 0 to `length`; None promises all.
    """
    size = cutlass.const_expr(length * target.dtype.width // 8)
    if cutlass.const_expr(valid is None):
        copy_async(target.toint(), source.toint(), size)
    else:
        cache = cutlass.const_expr("cg" if size == 16 else "ca")
        cute.arch.inline_ptx(
            f"cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], {size}, {{$r2}};",
            read_only_args=[target.toint(), source.toint(), Int32(valid * (size // length))],
        )


@cute.jit
def copy_async(target, source, size: cutlass.Constexpr[int]):
    """Copy `size` bytes, 4, 8 or 16, into shared memory, between addresses that are multiples of it."""
    # Copies of 16 bytes bypass the L1 cache, where nothing would read them again.
    cache = cutlass.const_expr("cg" if size == 16 else "ca")
    cute.arch.inline_ptx(
        f"cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], {size};", read_only_args=[target, source]
    )


@cute.jit
def copy_bulk_async(target, source, size, barrier: cute.Pointer):
    """Copy `size` bytes into shared memory by TMA, and complete them at a barrier; all are multiples of 16."""
    cute.arch.inline_ptx(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{$r0}], [{$r1}], {$r2}, [{$r3}];",
        read_only_args=[target, source, size, barrier.toint()],
    )


@cute.jit
def copy_masked_async(target, source, size: cutlass.Constexpr[int], mask, bit: cutlass.Constexpr[int]):
    """Copy `size` bytes, 4 or 16, into shared memory, or zeros where a bit of a mask is not set.

    Parameters
    ----------
    target, source : Int32 and Int64
        Addresses in shared and in device memory, multiples of `size`. Nothing is read where the bit is not set.
    size : int
        Bytes.
    mask : Int32
        The mask.
    bit : int
        Number of the bit.
    """
    cache = cutlass.const_expr("cg" if size == 16 else "ca")
    cute.arch.inline_ptx(
        f"{{ .reg .pred outside; .reg .b32 inside; and.b32 inside, {{$r2}}, {1 << bit}; "
        f"setp.eq.s32 outside, inside, 0; cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], {size}, outside; }}",
        read_only_args=[target, source, mask],
    )
