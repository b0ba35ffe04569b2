"""Moving a slice of a matrix into shared memory through registers: all threads of a CTA, runs of 4 neighbours each."""

from __future__ import annotations

import cutlass
from cutlass import cute

from .vectors import read_run

#: Neighbours that a thread moves at once: 16 bytes of float32.
RUN = 4


@cute.jit
def fetch_slice(
    mX: cute.Tensor,
    row0,
    col0,
    shape: cutlass.Constexpr[tuple[int, int]],
    threads: cutlass.Constexpr[int],
    whole: cutlass.Constexpr[bool],
):
    """Return this thread's runs of the slice of that shape at (row0, col0), zeros outside the matrix."""
    tid, _, _ = cute.arch.thread_idx()
    runs = cutlass.const_expr(shape[1] // RUN)
    count = cutlass.const_expr(shape[0] * runs // threads)
    fetched = cute.make_rmem_tensor(cute.make_layout((RUN, count)), mX.element_type)
    for p in cutlass.range_constexpr(count):
        e = tid + p * threads
        cute.autovec_copy(read_run(mX, row0 + e // runs, col0 + e % runs * RUN, RUN, whole), fetched[None, p])
    return fetched


@cute.jit
def put_slice(fetched: cute.Tensor, sX: cute.Tensor, threads: cutlass.Constexpr[int]):
    """Store the runs of a slice in shared memory, in whatever order its layout says."""
    tid, _, _ = cute.arch.thread_idx()
    runs = cutlass.const_expr(sX.shape[1] // RUN)
    for p in cutlass.range_constexpr(cute.size(fetched, mode=[1])):
        e = tid + p * threads
        for v in cutlass.range_constexpr(RUN):
            sX[e // runs, e % runs * RUN + v] = fetched[v, p]
