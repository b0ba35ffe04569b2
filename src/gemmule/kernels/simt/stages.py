"""Copies of k-tiles into shared memory through registers, by all threads of a CTA in vectors of 4 elements."""

from __future__ import annotations

import cutlass
from cutlass import cute

from .config import VECTOR
from .vectors import read_vector


@cute.jit
def load_k_tile(
    mX: cute.Tensor,
    row0,
    col0,
    shape: cutlass.Constexpr[tuple[int, int]],
    threads: cutlass.Constexpr[int],
    whole: cutlass.Constexpr[bool],
):
    """Return this thread's vectors of the k-tile of that shape at (row0, col0), zeros outside the matrix."""
    tid, _, _ = cute.arch.thread_idx()
    vectors = cutlass.const_expr(shape[1] // VECTOR)
    count = cutlass.const_expr(shape[0] * vectors // threads)
    loaded = cute.make_rmem_tensor(cute.make_layout((VECTOR, count)), mX.element_type)
    for p in cutlass.range_constexpr(count):
        e = tid + p * threads
        row, col = row0 + e // vectors, col0 + e % vectors * VECTOR
        cute.autovec_copy(read_vector(mX, row, col, VECTOR, whole), loaded[None, p])
    return loaded


@cute.jit
def store_k_tile(loaded: cute.Tensor, sX: cute.Tensor, threads: cutlass.Constexpr[int]):
    """Store the vectors of a k-tile in shared memory, in the order of its layout."""
    tid, _, _ = cute.arch.thread_idx()
    vectors = cutlass.const_expr(sX.shape[1] // VECTOR)
    for p in cutlass.range_constexpr(cute.size(loaded, mode=[1])):
        e = tid + p * threads
        for v in cutlass.range_constexpr(VECTOR):
            sX[e // vectors, e % vectors * VECTOR + v] = loaded[v, p]
