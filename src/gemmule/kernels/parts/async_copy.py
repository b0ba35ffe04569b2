"""Asynchronous copies from device memory into shared memory (cp.async), with zeros for what lies outside a matrix."""

from __future__ import annotations

import cutlass
from cutlass import Int32, cute


@cute.jit
def copy_run_async(sRun: cute.Pointer, gRun: cute.Pointer, length: cutlass.Constexpr[int], valid):
    """Copy `length` neighbours into shared memory, the first `valid` of them read and the others zero.

    Parameters
    ----------
    sRun, gRun : Pointer
        Where the run begins in shared and in device memory; both multiples of its size, which is 4, 8 or 16 bytes.
        Nothing is read where `valid` is 0: `gRun` may then lie outside the matrix, still aligned.
    length : int
        Elements of the run.
    valid : int or None
        How many lie inside the matrix, 0 to `length`; None promises that all do.
    """
    size = cutlass.const_expr(length * sRun.dtype.width // 8)
    # Copies of 16 bytes pass by the L1 cache, which would keep them in vain.
    cache = cutlass.const_expr("cg" if size == 16 else "ca")
    if cutlass.const_expr(valid is None):
        cute.arch.inline_ptx(
            f"cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], {size};",
            read_only_args=[sRun.toint(), gRun.toint()],
        )
    else:
        cute.arch.inline_ptx(
            f"cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], {size}, {{$r2}};",
            read_only_args=[sRun.toint(), gRun.toint(), Int32(valid * (size // length))],
        )
