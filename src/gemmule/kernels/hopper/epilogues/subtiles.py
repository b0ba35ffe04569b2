"""A warp's 16 rows of a box of the result in shared memory, in the swizzle in which the copy engine takes it."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Uint16, cute

from .stmatrix import load_matrices, store_matrices


@cute.jit
def write_rows(
    address, row, width: cutlass.Constexpr[int], sums: cute.Tensor, first: cutlass.Constexpr[int], out: Any, adds: Any,
    alpha, beta,
):  # fmt: skip
    """Write alpha * sums, and beta * what lies there already.

    Parameters
    ----------
    address : Int32
        Where the box begins in shared memory.
    row : Int32
        The first of this warp's rows.
    width : int
        Columns of the box: 8 or a multiple of 16, of at most 128 bytes.
    sums : Tensor
        This thread's registers, flat, as wgmma leaves them, and the first of this box among them.
    out : type
        Of the elements, of 8, 16 or 32 bits; of those of 8 bits a box has a multiple of 16 columns.
    adds : bool
        Whether to add what lies there.
    alpha, beta : Float32
        The factors.
    """
    if cutlass.const_expr(out.width == 16):
        for q in cutlass.range_constexpr(-(-width // 16)):
            _write_square(address, row, width, q, sums, first + 8 * q, out, adds, alpha, beta)
    elif cutlass.const_expr(out.width == 8):
        for q in cutlass.range_constexpr(width // 16):
            _write_bytes(address, row, width, q, sums, first + 8 * q, out, adds, alpha, beta)
    else:
        for q in cutlass.range_constexpr(width // 8):
            _write_pairs(address, row, width, q, sums, first + 4 * q, out, adds, alpha, beta)


@cute.jit
def chunk(address, row, chunk, row_bytes: cutlass.Constexpr[int]):
    """Return where 16 bytes of a row lie: the swizzle exchanges them within 128 bytes, or within shorter rows."""
    return address + row * row_bytes + (chunk ^ (row * row_bytes // 128 % (row_bytes // 16))) * 16


@cute.jit
def _write_square(
    address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], sums, first: cutlass.Constexpr[int],
    out: Any, adds: Any, alpha, beta,
):  # fmt: skip
    """Write 16 x 16 elements of 16 bits, or 16 x 8 where the box is no wider."""
    tid, _, _ = cute.arch.thread_idx()
    words = cutlass.const_expr(4 if width > 8 else 2)
    # Two neighbours of a row, those of the row 8 below, and the same 8 columns further.
    values = cute.make_rmem_tensor(cute.make_layout(2 * words), cutlass.Float32)
    for v in cutlass.range_constexpr(2 * words):
        values[v] = sums[first + v] * alpha
    place = chunk(address, row + tid % 16, 2 * q + tid % 32 // 16 if cutlass.const_expr(width > 8) else 0, 2 * width)
    if cutlass.const_expr(adds):
        added = cute.make_rmem_tensor(cute.make_layout(words), Int32)
        for w, word in enumerate(load_matrices(place, words)):
            added[w] = word
        c = cute.recast_tensor(added, out)
        for v in cutlass.range_constexpr(2 * words):
            values[v] = values[v] + beta * c[v].to(cutlass.Float32)
    written = cute.make_rmem_tensor(cute.make_layout(2 * words), out)
    written.store(values.load().to(out))
    store_matrices(place, cute.recast_tensor(written, Int32))


@cute.jit
def _write_bytes(
    address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], sums, first: cutlass.Constexpr[int],
    out: Any, adds: Any, alpha, beta,
):  # fmt: skip
    """Write 16 x 16 elements of 8 bits, two neighbours at once, in the order of `_write_square`."""
    for v in cutlass.range_constexpr(4):
        pair = byte_pair(address, row, width, q, v)
        # The conversion takes four at once.
        values = cute.make_rmem_tensor(cute.make_layout(4), cutlass.Float32)
        values.fill(0)
        for e in cutlass.range_constexpr(2):
            values[e] = sums[first + 2 * v + e] * alpha
        if cutlass.const_expr(adds):
            c = byte_values(pair, out)
            for e in cutlass.range_constexpr(2):
                values[e] = values[e] + beta * c[e]
        written = cute.make_rmem_tensor(cute.make_layout(4), out)
        written.store(values.load().to(out))
        pair[0] = cute.recast_tensor(written, Uint16)[0]


@cute.jit
def byte_pair(address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], v: cutlass.Constexpr[int]):
    """Return two of this thread's elements of 8 bits of a part, as 16 bits: of a row, or of that 8 below."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    place = chunk(address, row + lane // 4 + v % 2 * 8, q, width) + v // 2 * 8 + lane % 4 * 2
    return cute.make_tensor(cute.make_ptr(Uint16, place, cute.AddressSpace.smem, assumed_align=2), cute.make_layout(1))


@cute.jit
def byte_values(pair: cute.Tensor, out: Any):
    """Return two elements of 8 bits as floats."""
    found = cute.make_rmem_tensor(cute.make_layout(2), Uint16)
    found.fill(0)
    found[0] = pair[0]
    return cute.recast_tensor(found, out).load().to(cutlass.Float32)


@cute.jit
def _write_pairs(
    address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], sums, first: cutlass.Constexpr[int],
    out: Any, adds: Any, alpha, beta,
):  # fmt: skip
    """Write 16 x 8 elements of 32 bits: two neighbours of a row, and those of the row 8 below."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    for half in cutlass.range_constexpr(2):
        place = chunk(address, row + lane // 4 + 8 * half, 2 * q + lane % 4 // 2, 4 * width) + lane % 2 * 8
        pair = cute.make_tensor(cute.make_ptr(out, place, cute.AddressSpace.smem, assumed_align=8), cute.make_layout(2))
        values = cute.make_rmem_tensor(cute.make_layout(2), out)
        for v in cutlass.range_constexpr(2):
            values[v] = sums[first + 2 * half + v] * alpha
        if cutlass.const_expr(adds):
            for v in cutlass.range_constexpr(2):
                values[v] = values[v] + beta * pair[v]
        pair.store(values.load())


@cute.jit
def write_columns(
    address, row, width: cutlass.Constexpr[int], sums: cute.Tensor, first: cutlass.Constexpr[int], out: Any, adds: Any,
    alpha, beta,
):  # fmt: skip
    """Write the transpose of what `write_rows` writes: lines of the box are its columns, 64 elements each.

    They lie in rows of 128 bytes: elements of 32 bits in two boxes, one behind the other. The width is a multiple of 8.
    """
    if cutlass.const_expr(out.width == 16):
        for q in cutlass.range_constexpr(-(-width // 16)):
            _write_turned(address, row, q, sums, first + 8 * q, 8 if width - 16 * q > 8 else 4, out, adds, alpha, beta)
    else:
        for q in cutlass.range_constexpr(width // 8):
            _write_scattered(address, row, width, q, sums, first + 4 * q, out, adds, alpha, beta)


@cute.jit
def _write_turned(
    address, row, q: cutlass.Constexpr[int], sums, first: cutlass.Constexpr[int], count: cutlass.Constexpr[int],
    out: Any, adds: Any, alpha, beta,
):  # fmt: skip
    """Write 16 elements of 16 bits of 16 lines, or of 8."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    values = cute.make_rmem_tensor(cute.make_layout(count), cutlass.Float32)
    for v in cutlass.range_constexpr(count):
        values[v] = sums[first + v] * alpha
    place = chunk(address, 16 * q + lane // 16 * 8 + lane % 8, row // 8 + lane // 8 % 2, 128)
    if cutlass.const_expr(adds):
        added = cute.make_rmem_tensor(cute.make_layout(count // 2), Int32)
        for w, word in enumerate(load_matrices(place, count // 2, turned=True)):
            added[w] = word
        c = cute.recast_tensor(added, out)
        for v in cutlass.range_constexpr(count):
            values[v] = values[v] + beta * c[v].to(cutlass.Float32)
    written = cute.make_rmem_tensor(cute.make_layout(count), out)
    written.store(values.load().to(out))
    store_matrices(place, cute.recast_tensor(written, Int32), turned=True)


@cute.jit
def _write_scattered(
    address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], sums, first: cutlass.Constexpr[int],
    out: Any, adds: Any, alpha, beta,
):  # fmt: skip
    """Write 16 elements of 32 bits of 8 lines, one by one."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    for v in cutlass.range_constexpr(4):
        along = row + lane // 4 + v // 2 * 8
        line = 8 * q + lane % 4 * 2 + v % 2
        box = address + along // 32 * width * 128
        place = chunk(box, line, along % 32 // 4, 128) + along % 4 * 4
        one = cute.make_tensor(cute.make_ptr(out, place, cute.AddressSpace.smem, assumed_align=4), cute.make_layout(1))
        value = sums[first + v] * alpha
        if cutlass.const_expr(adds):
            value = value + beta * one[0]
        one[0] = value


def parts_of(width: int, out: Any) -> list[tuple[int, int]]:
    """Return the parts in which a box is written, and for each how many sums of a thread are in it."""
    if out.width == 8:
        return [(q, 8) for q in range(width // 16)]
    if out.width == 16:
        return [(q, 8 if width - 16 * q > 8 else 4) for q in range(-(-width // 16))]
    return [(q, 4) for q in range(width // 8)]


@cute.jit
def write_part(
    address, row, width: cutlass.Constexpr[int], q: cutlass.Constexpr[int], values: cute.Tensor, out: Any,
    columns: cutlass.Constexpr[bool],
):  # fmt: skip
    """Write a part of a box, as `write_rows` or `write_columns` would, from registers that hold no more than that."""
    one, zero = cutlass.Float32(1), cutlass.Float32(0)
    if cutlass.const_expr(out.width == 16 and columns):
        _write_turned(address, row, q, values, 0, cute.size(values), out, False, one, zero)
    elif cutlass.const_expr(out.width == 16):
        _write_square(address, row, width, q, values, 0, out, False, one, zero)
    elif cutlass.const_expr(out.width == 8):
        _write_bytes(address, row, width, q, values, 0, out, False, one, zero)
    elif cutlass.const_expr(columns):
        _write_scattered(address, row, width, q, values, 0, out, False, one, zero)
    else:
        _write_pairs(address, row, width, q, values, 0, out, False, one, zero)
