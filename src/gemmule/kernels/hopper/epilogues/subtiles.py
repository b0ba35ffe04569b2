"""A warp's 16 rows of an epilogue subtile in shared memory, in the swizzle in which TMA reads it."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, Uint16, cute

from .stmatrix import load_matrices, store_matrices


class WarpRows(NamedTuple):
    """A warp's 16 rows of a subtile.

    Attributes
    ----------
    address : Int32
        Where the subtile begins in shared memory.
    row : Int32
        The first of this warp's rows.
    width : int
        Columns of the subtile: 8 or a multiple of 16, of at most 128 bytes.
    out : type
        Element type, of 8, 16 or 32 bits; of those of 8 bits a subtile has a multiple of 16 columns.
    """

    address: Any
    row: Any
    width: int
    out: Any


class Scale(NamedTuple):
    """The linear combination alpha * accumulators + beta * C, where the subtile holds C if `reads_c`."""

    alpha: Any
    beta: Any
    reads_c: bool


@cute.jit
def write_rows(rows, accumulators: cute.Tensor, first: cutlass.Constexpr[int], scale):
    """Write a linear combination.

    Parameters
    ----------
    rows : WarpRows
        Where to write.
    accumulators : Tensor
        This thread's accumulators, flat, as wgmma leaves them.
    first : int
        The first of them that belongs to the subtile.
    scale : Scale
        The linear combination.
    """
    if cutlass.const_expr(rows.out.width == 16):
        for q in cutlass.range_constexpr(-(-rows.width // 16)):
            _write_matrices(rows, q, accumulators, first + 8 * q, scale)
    elif cutlass.const_expr(rows.out.width == 8):
        for q in cutlass.range_constexpr(rows.width // 16):
            _write_bytes(rows, q, accumulators, first + 8 * q, scale)
    else:
        for q in cutlass.range_constexpr(rows.width // 8):
            _write_pairs(rows, q, accumulators, first + 4 * q, scale)


@cute.jit
def write_columns(rows, accumulators: cute.Tensor, first: cutlass.Constexpr[int], scale):
    """Write the transpose of what `write_rows` writes: the subtile's columns lie in memory, 64 elements each.

    They lie in lines of 128 bytes: elements of 32 bits in two subtiles, one after the other. The width is a multiple
    of 8.
    """
    if cutlass.const_expr(rows.out.width == 16):
        for q in cutlass.range_constexpr(-(-rows.width // 16)):
            count = cutlass.const_expr(8 if rows.width - 16 * q > 8 else 4)
            _write_transposed(rows, q, accumulators, first + 8 * q, count, scale)
    else:
        for q in cutlass.range_constexpr(rows.width // 8):
            _write_scattered(rows, q, accumulators, first + 4 * q, scale)


@cute.jit
def chunk_at(address, row, chunk, row_bytes: cutlass.Constexpr[int]):
    """Return where 16 bytes of a row lie: the swizzle permutes them within 128 bytes, or within shorter rows."""
    return address + row * row_bytes + (chunk ^ (row * row_bytes // 128 % (row_bytes // 16))) * 16


@cute.jit
def matrices_at(rows, q: cutlass.Constexpr[int]):
    """Return the address that this lane gives `stmatrix` and `ldmatrix` for 16 x 16 elements of 16 bits, or 16 x 8."""
    tid, _, _ = cute.arch.thread_idx()
    row, chunk = rows.row + tid % 16, 2 * q + tid % 32 // 16 if cutlass.const_expr(rows.width > 8) else 0
    return chunk_at(rows.address, row, chunk, 2 * rows.width)


@cute.jit
def transposed_matrices_at(rows, q: cutlass.Constexpr[int]):
    """Return what `matrices_at` does for the transpose: 16 elements of 16 columns, or of 8."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    return chunk_at(rows.address, 16 * q + lane // 16 * 8 + lane % 8, rows.row // 8 + lane // 8 % 2, 128)


@cute.jit
def _write_matrices(rows, q: cutlass.Constexpr[int], accumulators, first: cutlass.Constexpr[int], scale):
    """Write 16 x 16 elements of 16 bits, or 16 x 8 where the subtile is no wider."""
    # Two contiguous elements of a row, those of the row 8 below, and the same 8 columns further.
    values = _scaled(accumulators, first, 8 if cutlass.const_expr(rows.width > 8) else 4, scale)
    _store(matrices_at(rows, q), values, rows.out, scale, False)


@cute.jit
def _write_transposed(
    rows, q: cutlass.Constexpr[int], accumulators, first: cutlass.Constexpr[int], count: cutlass.Constexpr[int], scale
):
    """Write 16 elements of 16 bits of 16 columns, or of 8."""
    values = _scaled(accumulators, first, count, scale)
    _store(transposed_matrices_at(rows, q), values, rows.out, scale, True)


@cute.jit
def _scaled(accumulators, first: cutlass.Constexpr[int], count: cutlass.Constexpr[int], scale):
    """Return accumulators times alpha."""
    values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
    for v in cutlass.range_constexpr(count):
        values[v] = accumulators[first + v] * scale.alpha
    return values


@cute.jit
def _store(place, values: cute.Tensor, out: Any, scale, transposed: cutlass.Constexpr[bool]):
    """Store 16-bit elements by `stmatrix`, with beta * C if it lies there."""
    words = cutlass.const_expr(cute.size(values) // 2)
    if cutlass.const_expr(scale.reads_c):
        loaded = cute.make_rmem_tensor(cute.make_layout(words), Int32)
        for w, word in enumerate(load_matrices(place, words, transposed)):
            loaded[w] = word
        c = cute.recast_tensor(loaded, out)
        for v in cutlass.range_constexpr(2 * words):
            values[v] = values[v] + scale.beta * c[v].to(Float32)
    written = cute.make_rmem_tensor(cute.make_layout(2 * words), out)
    written.store(values.load().to(out))
    store_matrices(place, cute.recast_tensor(written, Int32), transposed)


@cute.jit
def _write_bytes(rows, q: cutlass.Constexpr[int], accumulators, first: cutlass.Constexpr[int], scale):
    """Write 16 x 16 elements of 8 bits, two contiguous ones at once, in the order of `_write_matrices`."""
    for v in cutlass.range_constexpr(4):
        pair = byte_pair(rows, q, v)
        # The conversion takes four at once.
        values = cute.make_rmem_tensor(cute.make_layout(4), Float32)
        values.fill(0)
        for e in cutlass.range_constexpr(2):
            values[e] = accumulators[first + 2 * v + e] * scale.alpha
        if cutlass.const_expr(scale.reads_c):
            c = byte_values(pair, rows.out)
            for e in cutlass.range_constexpr(2):
                values[e] = values[e] + scale.beta * c[e]
        written = cute.make_rmem_tensor(cute.make_layout(4), rows.out)
        written.store(values.load().to(rows.out))
        pair[0] = cute.recast_tensor(written, Uint16)[0]


@cute.jit
def byte_pair(rows, q: cutlass.Constexpr[int], v: cutlass.Constexpr[int]):
    """Return two of this thread's elements of 8 bits of a part, as 16 bits: of a row, or of that 8 below."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    place = chunk_at(rows.address, rows.row + lane // 4 + v % 2 * 8, q, rows.width) + v // 2 * 8 + lane % 4 * 2
    return cute.make_tensor(cute.make_ptr(Uint16, place, cute.AddressSpace.smem, assumed_align=2), cute.make_layout(1))


@cute.jit
def byte_values(pair: cute.Tensor, out: Any):
    """Return two elements of 8 bits as floats."""
    loaded = cute.make_rmem_tensor(cute.make_layout(2), Uint16)
    loaded.fill(0)
    loaded[0] = pair[0]
    return cute.recast_tensor(loaded, out).load().to(Float32)


@cute.jit
def _write_pairs(rows, q: cutlass.Constexpr[int], accumulators, first: cutlass.Constexpr[int], scale):
    """Write 16 x 8 elements of 32 bits: two contiguous ones of a row, and those of the row 8 below."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    for half in cutlass.range_constexpr(2):
        row, chunk = rows.row + lane // 4 + 8 * half, 2 * q + lane % 4 // 2
        place = chunk_at(rows.address, row, chunk, 4 * rows.width) + lane % 2 * 8
        pointer = cute.make_ptr(rows.out, place, cute.AddressSpace.smem, assumed_align=8)
        pair = cute.make_tensor(pointer, cute.make_layout(2))
        values = cute.make_rmem_tensor(cute.make_layout(2), rows.out)
        for v in cutlass.range_constexpr(2):
            values[v] = accumulators[first + 2 * half + v] * scale.alpha
        if cutlass.const_expr(scale.reads_c):
            for v in cutlass.range_constexpr(2):
                values[v] = values[v] + scale.beta * pair[v]
        pair.store(values.load())


@cute.jit
def _write_scattered(rows, q: cutlass.Constexpr[int], accumulators, first: cutlass.Constexpr[int], scale):
    """Write 16 elements of 32 bits of 8 columns, one by one."""
    for v in cutlass.range_constexpr(4):
        one = scattered(rows, q, v)
        value = accumulators[first + v] * scale.alpha
        if cutlass.const_expr(scale.reads_c):
            value = value + scale.beta * one[0]
        one[0] = value


@cute.jit
def scattered(rows, q: cutlass.Constexpr[int], v: cutlass.Constexpr[int]):
    """Return this thread's element `v` of 32 bits of 8 columns that lie in memory, as a tensor."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    element = rows.row + lane // 4 + v // 2 * 8
    column = 8 * q + lane % 4 * 2 + v % 2
    half = rows.address + element // 32 * rows.width * 128
    place = chunk_at(half, column, element % 32 // 4, 128) + element % 4 * 4
    return cute.make_tensor(
        cute.make_ptr(rows.out, place, cute.AddressSpace.smem, assumed_align=4), cute.make_layout(1)
    )


def parts_of(width: int, out: Any) -> list[tuple[int, int]]:
    """Return the parts in which a subtile is written, and how many accumulators of a thread are in each."""
    if out.width == 8:
        return [(q, 8) for q in range(width // 16)]
    if out.width == 16:
        return [(q, 8 if width - 16 * q > 8 else 4) for q in range(-(-width // 16))]
    return [(q, 4) for q in range(width // 8)]


@cute.jit
def write_part(rows, q: cutlass.Constexpr[int], values: cute.Tensor, columns: cutlass.Constexpr[bool]):
    """Write a part of a subtile, as `write_rows` or `write_columns` would, from registers that hold no more."""
    plain = Scale(Float32(1), Float32(0), False)
    if cutlass.const_expr(rows.out.width == 16 and columns):
        _write_transposed(rows, q, values, 0, cute.size(values), plain)
    elif cutlass.const_expr(rows.out.width == 16):
        _write_matrices(rows, q, values, 0, plain)
    elif cutlass.const_expr(rows.out.width == 8):
        _write_bytes(rows, q, values, 0, plain)
    elif cutlass.const_expr(columns):
        _write_scattered(rows, q, values, 0, plain)
    else:
        _write_pairs(rows, q, values, 0, plain)
