"""A part of an epilogue subtile in shared memory, as floats in the order in which wgmma leaves accumulators."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, cute

from .stmatrix import load_matrices
from .subtiles import byte_pair, byte_values, chunk_at, matrices_at, scattered, transposed_matrices_at


@cute.jit
def read_part(rows, q: cutlass.Constexpr[int], count: cutlass.Constexpr[int], columns: cutlass.Constexpr[bool]):
    """Return this thread's `count` values of a part: where `write_part` will write."""
    values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
    if cutlass.const_expr(rows.out.width == 16):
        _read_matrices(values, rows, q, columns)
    elif cutlass.const_expr(rows.out.width == 8):
        for v in cutlass.range_constexpr(4):
            pair = byte_values(byte_pair(rows, q, v), rows.out)
            values[2 * v], values[2 * v + 1] = pair[0], pair[1]
    else:
        for v in cutlass.range_constexpr(4):
            values[v] = _read_one(rows, q, v, columns)
    return values


@cute.jit
def _read_matrices(values, rows, q: cutlass.Constexpr[int], columns: cutlass.Constexpr[bool]):
    """Read 16 x 16 elements of 16 bits, or 16 x 8."""
    words = cutlass.const_expr(cute.size(values) // 2)
    place = transposed_matrices_at(rows, q) if cutlass.const_expr(columns) else matrices_at(rows, q)
    loaded = cute.make_rmem_tensor(cute.make_layout(words), Int32)
    for w, word in enumerate(load_matrices(place, words, transposed=columns)):
        loaded[w] = word
    elements = cute.recast_tensor(loaded, rows.out)
    for v in cutlass.range_constexpr(2 * words):
        values[v] = elements[v].to(Float32)


@cute.jit
def _read_one(rows, q: cutlass.Constexpr[int], v: cutlass.Constexpr[int], columns: cutlass.Constexpr[bool]):
    """Read an element of 32 bits."""
    if cutlass.const_expr(columns):
        one = scattered(rows, q, v)
    else:
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % 32
        row, chunk = rows.row + lane // 4 + v // 2 * 8, 2 * q + lane % 4 // 2
        place = chunk_at(rows.address, row, chunk, 4 * rows.width) + lane % 2 * 8 + v % 2 * 4
        pointer = cute.make_ptr(Float32, place, cute.AddressSpace.smem, assumed_align=4)
        one = cute.make_tensor(pointer, cute.make_layout(1))
    return one[0]
