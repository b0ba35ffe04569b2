"""A warp's part of an epilogue tile in shared memory, in the swizzle in which TMA reads it.

It is written in blocks of 16 columns, or 8 of 32-bit elements: for 16-bit elements one `stmatrix` each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int8, Int32, Uint16, cute


class WarpEpiTile(NamedTuple):
    """A warp's 16 rows of an epilogue tile; where that is column-major, 16 elements of each column."""

    address: Any  #: Int32. Address of the epilogue tile in shared memory.
    row: Any  #: Int32. The first of this warp's rows.
    #: Columns of the epilogue tile: row-major 8 or a multiple of 16, at most 128 bytes; column-major a multiple of 8.
    width: int
    element: Any  #: Type. Element type, of 8, 16 or 32 bits; 8-bit tiles are row-major with a multiple of 16 columns.
    #: Whether columns are contiguous: 64 elements in rows of 128 bytes, 32-bit ones in two halves one after the other.
    column_major: bool = False


class Scale(NamedTuple):
    """The linear combination alpha * accumulators + beta * C, where the epilogue tile holds C if `reads_c`."""

    alpha: Any
    beta: Any
    reads_c: bool


def stmatrix_blocks(tile: WarpEpiTile) -> list[tuple[int, int]]:
    """Return the index of each block of columns, and how many accumulators a thread has in it."""
    columns = 8 if tile.element.width == 32 else 16
    return [(block, min(columns, tile.width - columns * block) // 2) for block in range(-(-tile.width // columns))]


def write_epi_tile(tile: WarpEpiTile, accumulators: Any, first: int, scale: Scale) -> None:
    """Write an epilogue tile, a linear combination.

    Parameters
    ----------
    tile : WarpEpiTile
        The warp's part.
    accumulators : Tensor
        This thread's accumulators, flat, as wgmma leaves them.
    first : int
        The first of them that belongs to the epilogue tile.
    scale : Scale
        The linear combination.
    """
    for block, count in stmatrix_blocks(tile):
        write_block(tile, block, accumulators, (first, count), scale)
        first += count


@cute.jit
def write_block(
    tile, block: cutlass.Constexpr[int], accumulators, accumulator_range: cutlass.Constexpr[tuple[int, int]], scale
):
    """Write a block of columns from a range of accumulators.

    Parameters
    ----------
    tile, accumulators, scale
        As of `write_epi_tile`.
    block : int
        Index of the block.
    accumulator_range : tuple of int
        The first accumulator of the block, and how many it has.
    """
    first, count = accumulator_range
    if cutlass.const_expr(tile.element.width == 16):
        values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
        for v in cutlass.range_constexpr(count):
            values[v] = accumulators[first + v] * scale.alpha
        address = _stmatrix_address(tile, block)
        if cutlass.const_expr(scale.reads_c):
            c = _load(address, tile, count)
            for v in cutlass.range_constexpr(count):
                values[v] = values[v] + scale.beta * c[v].to(Float32)
        written = cute.make_rmem_tensor(cute.make_layout(count), tile.element)
        written.store(values.load().to(tile.element))
        stmatrix(address, cute.recast_tensor(written, Int32), tile.column_major)
    else:
        size = cutlass.const_expr(1 if tile.column_major else 2)
        for v in cutlass.range_constexpr(count // size):
            smem_elements = _smem_elements(tile, block, v, size)
            # The conversion to 8-bit floats takes four at once.
            length = cutlass.const_expr(4 if _is_float8(tile) else size)
            values = cute.make_rmem_tensor(cute.make_layout(length), _summed(tile))
            if cutlass.const_expr(length > size):
                values.fill(0)
            for e in cutlass.range_constexpr(size):
                values[e] = accumulators[first + size * v + e] * scale.alpha
            if cutlass.const_expr(scale.reads_c):
                c = _loaded(smem_elements, tile)
                for e in cutlass.range_constexpr(size):
                    values[e] = values[e] + scale.beta * c[e]
            if cutlass.const_expr(_is_float8(tile)):
                written = cute.make_rmem_tensor(cute.make_layout(4), tile.element)
                written.store(values.load().to(tile.element))
                smem_elements[0] = cute.recast_tensor(written, Uint16)[0]
            elif cutlass.const_expr(tile.element.width == 8):
                smem_elements[0] = Uint16((values[0] & 255) | (values[1] << 8))
            else:
                smem_elements.store(values.load())


@cute.jit
def read_block(tile, block: cutlass.Constexpr[int], count: cutlass.Constexpr[int]):
    """Return this thread's `count` values of a block, as floats in the order in which wgmma leaves accumulators."""
    values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
    if cutlass.const_expr(tile.element.width == 16):
        elements = _load(_stmatrix_address(tile, block), tile, count)
        for v in cutlass.range_constexpr(count):
            values[v] = elements[v].to(Float32)
    else:
        size = cutlass.const_expr(2 if tile.element.width == 8 else 1)
        for v in cutlass.range_constexpr(count // size):
            loaded = _loaded(_smem_elements(tile, block, v, size), tile)
            for e in cutlass.range_constexpr(size):
                values[size * v + e] = loaded[e]
    return values


@cute.jit
def _smem_elements(tile, block: cutlass.Constexpr[int], v: cutlass.Constexpr[int], size: cutlass.Constexpr[int]):
    """Return this thread's `v`-th `size` elements of a block, of 8 or 32 bits; two of 8 bits as one of 16.

    Row-major: two are contiguous, the next two are 8 rows below; 8-bit ones continue 8 columns further. Column-major:
    they are accessed one by one.
    """
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    element, count, align = tile.element, size, 4 * size
    if cutlass.const_expr(tile.element.width == 8):
        element, count, align = Uint16, 1, 2
        address = (
            swizzled_address(tile.address, tile.row + lane // 4 + v % 2 * 8, block, tile.width)
            + v // 2 * 8
            + lane % 4 * 2
        )
    elif cutlass.const_expr(tile.column_major):
        row, column = tile.row + lane // 4 + v // 2 * 8, 8 * block + lane % 4 * 2 + v % 2
        half = tile.address + row // 32 * tile.width * 128
        address = swizzled_address(half, column, row % 32 // 4, 128) + row % 4 * 4
    else:
        row, chunk = tile.row + lane // 4 + v * size // 2 * 8, 2 * block + lane % 4 // 2
        address = swizzled_address(tile.address, row, chunk, 4 * tile.width) + lane % 2 * 8 + v * size % 2 * 4
    pointer = cute.make_ptr(element, address, cute.AddressSpace.smem, assumed_align=align)
    return cute.make_tensor(pointer, cute.make_layout(count))


def _is_float8(tile: WarpEpiTile) -> bool:
    return tile.element.width == 8 and tile.element is not Int8


def _summed(tile: WarpEpiTile) -> Any:
    """Return the type in which elements of 8 or 32 bits are summed."""
    if tile.element.width == 32:
        return tile.element
    return Float32 if _is_float8(tile) else Int32


@cute.jit
def _loaded(elements: cute.Tensor, tile):
    """Return elements in the type of their sums."""
    if cutlass.const_expr(_is_float8(tile)):
        loaded = cute.make_rmem_tensor(cute.make_layout(2), Uint16)
        loaded.fill(0)
        loaded[0] = elements[0]
        elements = cute.recast_tensor(loaded, tile.element).load().to(Float32)
    elif cutlass.const_expr(tile.element.width == 8):
        both = Int32(elements[0])
        elements = ((both << 24) >> 24, (both << 16) >> 24)
    return elements


@cute.jit
def _load(address, tile, count: cutlass.Constexpr[int]):
    """Load elements of 16 bits by `ldmatrix`."""
    words = cutlass.const_expr(count // 2)
    loaded = cute.make_rmem_tensor(cute.make_layout(words), Int32)
    for w, word in enumerate(ldmatrix(address, words, tile.column_major)):
        loaded[w] = word
    return cute.recast_tensor(loaded, tile.element)


@cute.jit
def _stmatrix_address(tile, block: cutlass.Constexpr[int]):
    """Return the address that this lane gives `stmatrix` and `ldmatrix` for 16 x 16 elements of 16 bits, or 16 x 8."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    if cutlass.const_expr(tile.column_major):
        row, chunk, row_bytes = 16 * block + lane // 16 * 8 + lane % 8, tile.row // 8 + lane // 8 % 2, 128
    else:
        row, chunk = tile.row + tid % 16, 2 * block + lane // 16 if cutlass.const_expr(tile.width > 8) else 0
        row_bytes = cutlass.const_expr(2 * tile.width)
    return swizzled_address(tile.address, row, chunk, row_bytes)


@cute.jit
def swizzled_address(address, row, chunk, row_bytes: cutlass.Constexpr[int]):
    """Return the address of a chunk of 16 bytes of a row, swizzled.

    The swizzle is CuTe's Swizzle<3, 4, 3> for rows of 128 bytes, <2, 4, 3> for 64 and <1, 4, 3> for 32; rows of an odd
    number of chunks have none.
    """
    if cutlass.const_expr(row_bytes > 16 and row_bytes // 16 % 2 == 1):
        return address + row * row_bytes + chunk * 16
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
