"""A warp's 16 rows of an epilogue tile in shared memory, in the swizzle in which TMA reads it.

An epilogue tile is written in parts of 16 columns, or 8 of 32-bit elements: for 16-bit elements one `stmatrix` each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32, Uint16, cute


class WarpRows(NamedTuple):
    """A warp's 16 rows of an epilogue tile; of a column-major one, 16 elements of each column.

    Attributes
    ----------
    address : Int32
        Address of the epilogue tile in shared memory.
    row : Int32
        The first of this warp's rows.
    width : int
        Columns of the epilogue tile: 8 or a multiple of 16, of at most 128 bytes; of a column-major one any multiple
        of 8.
    element : type
        Element type, of 8, 16 or 32 bits; of those of 8 bits an epilogue tile is row-major and has a multiple of 16
        columns.
    column_major : bool
        Whether columns of 64 elements are contiguous in rows of 128 bytes: those of 32 bits in two halves, one after
        the other.
    """

    address: Any
    row: Any
    width: int
    element: Any
    column_major: bool = False


class Scale(NamedTuple):
    """The linear combination alpha * accumulators + beta * C, where the epilogue tile holds C if `reads_c`."""

    alpha: Any
    beta: Any
    reads_c: bool


def parts_of(rows: WarpRows) -> list[tuple[int, int]]:
    """Return the indices of an epilogue tile's parts, and how many accumulators of a thread are in each."""
    columns = 8 if rows.element.width == 32 else 16
    return [(part, min(columns, rows.width - columns * part) // 2) for part in range(-(-rows.width // columns))]


def write_epi_tile(rows: WarpRows, accumulators: Any, first: int, scale: Scale) -> None:
    """Write an epilogue tile, a linear combination.

    Parameters
    ----------
    rows : WarpRows
        The rows.
    accumulators : Tensor
        This thread's accumulators, flat, as wgmma leaves them.
    first : int
        The first of them that belongs to the epilogue tile.
    scale : Scale
        The linear combination.
    """
    for part, count in parts_of(rows):
        write_part(rows, part, accumulators, (first, count), scale)
        first += count


@cute.jit
def write_part(
    rows, part: cutlass.Constexpr[int], accumulators, accumulator_range: cutlass.Constexpr[tuple[int, int]], scale
):
    """Write a part of an epilogue tile from a range of accumulators, the first and how many.

    Parameters
    ----------
    rows, accumulators, scale
        As of `write_epi_tile`.
    part : int
        Index of the part.
    accumulator_range : tuple of int
        The first of the accumulators that belongs to it, and how many.
    """
    first, count = accumulator_range
    if cutlass.const_expr(rows.element.width == 16):
        values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
        for v in cutlass.range_constexpr(count):
            values[v] = accumulators[first + v] * scale.alpha
        address = _stmatrix_address(rows, part)
        if cutlass.const_expr(scale.reads_c):
            c = _load(address, rows, count)
            for v in cutlass.range_constexpr(count):
                values[v] = values[v] + scale.beta * c[v].to(Float32)
        written = cute.make_rmem_tensor(cute.make_layout(count), rows.element)
        written.store(values.load().to(rows.element))
        stmatrix(address, cute.recast_tensor(written, Int32), rows.column_major)
    else:
        size = cutlass.const_expr(1 if rows.column_major else 2)
        for v in cutlass.range_constexpr(count // size):
            smem_elements = _smem_elements(rows, part, v, size)
            if cutlass.const_expr(rows.element.width == 8):
                # The conversion takes four at once.
                values = cute.make_rmem_tensor(cute.make_layout(4), Float32)
                values.fill(0)
            else:
                values = cute.make_rmem_tensor(cute.make_layout(size), rows.element)
            for e in cutlass.range_constexpr(size):
                values[e] = accumulators[first + size * v + e] * scale.alpha
            if cutlass.const_expr(scale.reads_c):
                c = _floats(smem_elements, rows)
                for e in cutlass.range_constexpr(size):
                    values[e] = values[e] + scale.beta * c[e]
            if cutlass.const_expr(rows.element.width == 8):
                written = cute.make_rmem_tensor(cute.make_layout(4), rows.element)
                written.store(values.load().to(rows.element))
                smem_elements[0] = cute.recast_tensor(written, Uint16)[0]
            else:
                smem_elements.store(values.load())


@cute.jit
def read_part(rows, part: cutlass.Constexpr[int], count: cutlass.Constexpr[int]):
    """Return this thread's `count` values of a part, as floats in the order in which wgmma leaves accumulators."""
    values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
    if cutlass.const_expr(rows.element.width == 16):
        elements = _load(_stmatrix_address(rows, part), rows, count)
        for v in cutlass.range_constexpr(count):
            values[v] = elements[v].to(Float32)
    else:
        size = cutlass.const_expr(2 if rows.element.width == 8 else 1)
        for v in cutlass.range_constexpr(count // size):
            loaded = _floats(_smem_elements(rows, part, v, size), rows)
            for e in cutlass.range_constexpr(size):
                values[size * v + e] = loaded[e]
    return values


@cute.jit
def _smem_elements(rows, part: cutlass.Constexpr[int], v: cutlass.Constexpr[int], size: cutlass.Constexpr[int]):
    """Return this thread's `v`-th `size` elements of a part, of 8 or 32 bits; two of 8 bits as one of 16.

    In rows two are contiguous, the next two are 8 rows below; of 8 bits then follow those 8 columns further. In columns
    they are accessed one by one.
    """
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    element, count, align = rows.element, size, 4 * size
    if cutlass.const_expr(rows.element.width == 8):
        element, count, align = Uint16, 1, 2
        address = (
            _swizzled_address(rows.address, rows.row + lane // 4 + v % 2 * 8, part, rows.width)
            + v // 2 * 8
            + lane % 4 * 2
        )
    elif cutlass.const_expr(rows.column_major):
        row, column = rows.row + lane // 4 + v // 2 * 8, 8 * part + lane % 4 * 2 + v % 2
        half = rows.address + row // 32 * rows.width * 128
        address = _swizzled_address(half, column, row % 32 // 4, 128) + row % 4 * 4
    else:
        row, chunk = rows.row + lane // 4 + v * size // 2 * 8, 2 * part + lane % 4 // 2
        address = _swizzled_address(rows.address, row, chunk, 4 * rows.width) + lane % 2 * 8 + v * size % 2 * 4
    pointer = cute.make_ptr(element, address, cute.AddressSpace.smem, assumed_align=align)
    return cute.make_tensor(pointer, cute.make_layout(count))


@cute.jit
def _floats(elements: cute.Tensor, rows):
    """Return elements, those of 8 bits as floats."""
    if cutlass.const_expr(rows.element.width == 8):
        loaded = cute.make_rmem_tensor(cute.make_layout(2), Uint16)
        loaded.fill(0)
        loaded[0] = elements[0]
        elements = cute.recast_tensor(loaded, rows.element).load().to(Float32)
    return elements


@cute.jit
def _load(address, rows, count: cutlass.Constexpr[int]):
    """Load elements of 16 bits by `ldmatrix`."""
    words = cutlass.const_expr(count // 2)
    loaded = cute.make_rmem_tensor(cute.make_layout(words), Int32)
    for w, word in enumerate(ldmatrix(address, words, rows.column_major)):
        loaded[w] = word
    return cute.recast_tensor(loaded, rows.element)


@cute.jit
def _stmatrix_address(rows, part: cutlass.Constexpr[int]):
    """Return the address that this lane gives `stmatrix` and `ldmatrix` for 16 x 16 elements of 16 bits, or 16 x 8."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    if cutlass.const_expr(rows.column_major):
        row, chunk, row_bytes = 16 * part + lane // 16 * 8 + lane % 8, rows.row // 8 + lane // 8 % 2, 128
    else:
        row, chunk = rows.row + tid % 16, 2 * part + lane // 16 if cutlass.const_expr(rows.width > 8) else 0
        row_bytes = cutlass.const_expr(2 * rows.width)
    return _swizzled_address(rows.address, row, chunk, row_bytes)


@cute.jit
def _swizzled_address(address, row, chunk, row_bytes: cutlass.Constexpr[int]):
    """Return the address of a chunk of 16 bytes of a row, swizzled.

    The swizzle is CuTe's Swizzle<3, 4, 3> for rows of 128 bytes, <2, 4, 3> for 64 and <1, 4, 3> for 32.
    """
    return address + row * row_bytes + (chunk ^ (row * row_bytes // 128 % (row_bytes // 16))) * 16


@cute.jit
def stmatrix(address, words: cute.Tensor, transposed: cutlass.Constexpr[bool] = False):
    """Write 8 x 8 matrices of 16-bit elements, four or two.

    Parameters
    ----------
    address : Int32
        Address of this lane's row of 8 elements in shared memory: lanes 0 to 7 give the rows of the first matrix,
        8 to 15 those of the second, and so on.
    words : Tensor
        Two contiguous elements of each matrix: of row lane // 4, columns 2 * (lane % 4) and the next.
    transposed : bool
        Whether to write the matrices' transposes (``.trans``).
    """
    trans = ".trans" if transposed else ""
    if cutlass.const_expr(cute.size(words) == 4):
        cute.arch.inline_ptx(
            f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [{{$r0}}], {{{{$r1}}, {{$r2}}, {{$r3}}, {{$r4}}}};",
            read_only_args=[address, words[0], words[1], words[2], words[3]],
        )
    else:
        cute.arch.inline_ptx(
            f"stmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 [{{$r0}}], {{{{$r1}}, {{$r2}}}};",
            read_only_args=[address, words[0], words[1]],
        )


@cute.jit
def ldmatrix(address, count: cutlass.Constexpr[int] = 4, transposed: cutlass.Constexpr[bool] = False):
    """Return the words, four or two, that `stmatrix` would write."""
    names = ", ".join(f"{{$w{w}}}" for w in range(count))
    trans = ".trans" if transposed else ""
    return cute.arch.inline_ptx(
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [{{$r0}}];",
        write_only_types=[Int32] * count,
        read_only_args=[address],
    )
