"""What lies in a part of a box of the result in shared memory, as floats in the order in which wgmma leaves sums."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from .stmatrix import load_matrices
from .subtiles import byte_pair, byte_values, chunk


@cute.jit
def read_part(
    address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], count: cutlass.Constexpr[int], out: Any,
    columns: cutlass.Constexpr[bool],
):  # fmt: skip
    """Return this thread's values of a part: where `write_part` will write.

    Parameters
    ----------
    address, row, width, q, out, columns
        As of `write_part`.
    count : int
        How many they are.
    """
    values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
    if cutlass.const_expr(out.width == 16):
        _read_square(values, address, row, width, q, out, columns)
    elif cutlass.const_expr(out.width == 8):
        for v in cutlass.range_constexpr(4):
            pair = byte_values(byte_pair(address, row, width, q, v), out)
            values[2 * v], values[2 * v + 1] = pair[0], pair[1]
    else:
        for v in cutlass.range_constexpr(4):
            values[v] = _read_one(address, row, width, q, v, columns)
    return values


@cute.jit
def _read_square(
    values, address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], out: Any,
    columns: cutlass.Constexpr[bool],
):  # fmt: skip
    """Read 16 x 16 elements of 16 bits, or 16 x 8."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    words = cutlass.const_expr(cute.size(values) // 2)
    if cutlass.const_expr(columns):
        place = chunk(address, 16 * q + lane // 16 * 8 + lane % 8, row // 8 + lane // 8 % 2, 128)
    else:
        place = chunk(address, row + tid % 16, 2 * q + lane // 16 if cutlass.const_expr(width > 8) else 0, 2 * width)
    found = cute.make_rmem_tensor(cute.make_layout(words), Int32)
    for w, word in enumerate(load_matrices(place, words, turned=columns)):
        found[w] = word
    elements = cute.recast_tensor(found, out)
    for v in cutlass.range_constexpr(2 * words):
        values[v] = elements[v].to(Float32)


@cute.jit
def _read_one(
    address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], v: cutlass.Constexpr[int],
    columns: cutlass.Constexpr[bool],
):  # fmt: skip
    """Read an element of 32 bits."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    along = row + lane // 4 + v // 2 * 8
    if cutlass.const_expr(columns):
        line = 8 * q + lane % 4 * 2 + v % 2
        place = chunk(address + along // 32 * width * 128, line, along % 32 // 4, 128) + along % 4 * 4
    else:
        place = chunk(address, along, 2 * q + lane % 4 // 2, 4 * width) + lane % 2 * 8 + v % 2 * 4
    one = cute.make_ptr(Float32, place, cute.AddressSpace.smem, assumed_align=4)
    return cute.make_tensor(one, cute.make_layout(1))[0]
