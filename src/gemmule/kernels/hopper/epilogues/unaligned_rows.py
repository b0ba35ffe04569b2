"""Rows of 16- or 32-bit elements between shared memory and global memory, at any alignment."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Uint16, Uint32, cute

from gemmule.kernels.parts.words import shifted, words_at


@cute.jit
def halves_at(start: cute.Pointer, count: cutlass.Constexpr[int]):
    """Return elements of 16 bits as a tensor, from a pointer of any type on."""
    return _bits_at(start, count, 16)


@cute.jit
def _bits_at(start: cute.Pointer, count: cutlass.Constexpr[int], width: cutlass.Constexpr[int]):
    """Return elements of 16 or 32 bits as a tensor, from a pointer of any type on."""
    bits = Uint16 if cutlass.const_expr(width == 16) else Uint32
    pointer = cute.make_ptr(bits, start.toint(), start.memspace, assumed_align=width // 8)
    return cute.make_tensor(pointer, cute.make_layout(count))


@cute.jit
def element_at(mX: cute.Tensor, i, j):
    """Return the pointer to an element."""
    return mX.iterator + cute.crd2idx((i, j), mX.layout)


@cute.jit
def write_row(start: cute.Pointer, staged: cute.Pointer, count, length: cutlass.Constexpr[int]):
    """Write, by a warp, the first `count` of `length` elements (a multiple of 64) that are staged, 4 bytes a lane."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    source, target = halves_at(staged, length), halves_at(start, length)
    # Where a row begins between two words, its first element and its last are written alone.
    odd = Int32(start.toint() // 2 % 2)
    for x in cutlass.range_constexpr(length // 64):
        e = 2 * (lane + 32 * x) - odd
        low, high = Uint32(source[cutlass.max(e, 0)]), Uint32(source[e + 1])
        if e >= 0 and e + 1 < count:
            words_at(start + e, 1)[0] = low | high << 16
        elif e >= 0 and e < count:
            target[e] = Uint16(low)
        elif e < 0:
            target[0] = Uint16(high)
    if odd == 1 and lane == 0 and length <= count:
        target[length - 1] = source[length - 1]


@cute.jit
def write_whole_rows(starts, staged: cute.Pointer, stride: cutlass.Constexpr[int], length: cutlass.Constexpr[int]):
    """Write, by a warp, `length` elements to each of several pointers; their rows are staged `stride` words apart."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    steps = cutlass.const_expr(length // 64)
    # All words are loaded before the first is stored, so that their latencies overlap.
    words = cute.make_rmem_tensor(cute.make_layout((steps, len(starts))), Uint32)
    for r in cutlass.range_constexpr(len(starts)):
        odd = Int32(starts[r].toint() // 2 % 2)
        for x in cutlass.range_constexpr(steps):
            # In a row that begins between two words, word i is made of the halves of words i - 1 and i.
            w = lane + 32 * x
            word = words_at(staged + r * stride + w, 1)[0]
            before = words_at(staged + r * stride + cutlass.max(w - odd, 0), 1)[0]
            words[x, r] = shifted(before, word, 16 * odd)
    for r in cutlass.range_constexpr(len(starts)):
        start = starts[r]
        odd = Int32(start.toint() // 2 % 2)
        for x in cutlass.range_constexpr(steps):
            w = lane + 32 * x
            if odd == 0 or w > 0:
                words_at(start + 2 * w - odd, 1)[0] = words[x, r]
        if odd == 1 and lane < 2:
            # The first element and the last one.
            e = lane * (length - 1)
            halves_at(start, length)[e] = halves_at(staged + r * stride, length)[e]


@cute.jit
def write_row_of_words(start: cute.Pointer, staged: cute.Pointer, count, length: cutlass.Constexpr[int]):
    """Write, by a warp, the first `count` of `length` words of 32 bits (a multiple of 32), which are staged."""
    tid, _, _ = cute.arch.thread_idx()
    words = cute.make_rmem_tensor(cute.make_layout(length // 32), Uint32)
    for x in cutlass.range_constexpr(length // 32):
        words[x] = words_at(staged + (tid % 32 + 32 * x), 1)[0]
    for x in cutlass.range_constexpr(length // 32):
        e = tid % 32 + 32 * x
        if e < count:
            words_at(start + e, 1)[0] = words[x]


@cute.jit
def read_row_of_words(start: cute.Pointer, staged: cute.Pointer, count, length: cutlass.Constexpr[int]):
    """Read, by a warp, `count` words of 32 bits into shared memory; the rest of `length` is set to zero."""
    tid, _, _ = cute.arch.thread_idx()
    for x in cutlass.range_constexpr(length // 32):
        e = tid % 32 + 32 * x
        value = Uint32(0)
        if e < count:
            value = Uint32(words_at(start + e, 1)[0])
        words_at(staged + e, 1)[0] = value


@cute.jit
def read_row(start: cute.Pointer, staged: cute.Pointer, count, length: cutlass.Constexpr[int]):
    """Read, by a warp, `count` elements into shared memory, one a lane; the rest of `length` is set to zero."""
    tid, _, _ = cute.arch.thread_idx()
    source, target = halves_at(start, length), halves_at(staged, length)
    for x in cutlass.range_constexpr(length // 32):
        e = tid % 32 + 32 * x
        value = Uint16(0)
        if e < count:
            value = Uint16(source[e])
        target[e] = value


@cute.jit
def write_strip(
    mX: cute.Tensor,
    origin,
    staged: cute.Pointer,
    stride: cutlass.Constexpr[int],
    inside,
    length: cutlass.Constexpr[int],
):
    """Write, by a warp, the part inside a matrix of 16 staged rows of 8, 16 or 32 elements, an element a lane.

    Parameters
    ----------
    mX : Tensor
        The matrix.
    origin : tuple
        Row and column of the strip's first element.
    staged, stride : Pointer, int
        The rows in shared memory, and words from one to the next.
    inside : tuple
        Rows and columns from the origin to the matrix's ends.
    length : int
        Elements of a row.
    """
    rows, col, step = _strip(length)
    width = cutlass.const_expr(mX.element_type.width)
    bits = cute.make_rmem_tensor(cute.make_layout(16 // step), Uint16 if cutlass.const_expr(width == 16) else Uint32)
    # All are loaded before the first is stored, so that their latencies overlap.
    for x in cutlass.range_constexpr(16 // step):
        bits[x] = _bits_at(staged + (rows + x * step) * stride, length, width)[col]
    for x in cutlass.range_constexpr(16 // step):
        r = rows + x * step
        target = _bits_at(element_at(mX, origin[0] + r, origin[1]), length, width)
        if r < inside[0] and col < inside[1]:
            target[col] = bits[x]


@cute.jit
def read_strip(
    mX: cute.Tensor,
    origin,
    staged: cute.Pointer,
    stride: cutlass.Constexpr[int],
    inside,
    length: cutlass.Constexpr[int],
):
    """Read, by a warp, 16 rows into shared memory, as `write_strip` writes them; what is not inside is set to zero."""
    rows, col, step = _strip(length)
    width = cutlass.const_expr(mX.element_type.width)
    bits = cute.make_rmem_tensor(cute.make_layout(16 // step), Uint16 if cutlass.const_expr(width == 16) else Uint32)
    bits.fill(0)
    for x in cutlass.range_constexpr(16 // step):
        r = rows + x * step
        source = _bits_at(element_at(mX, origin[0] + r, origin[1]), length, width)
        if r < inside[0] and col < inside[1]:
            bits[x] = source[col]
    for x in cutlass.range_constexpr(16 // step):
        _bits_at(staged + (rows + x * step) * stride, length, width)[col] = bits[x]


def _strip(length: int) -> tuple[Any, Any, int]:
    """Return this lane's first row and its column of a strip, and the rows of a warp's access."""
    tid, _, _ = cute.arch.thread_idx()
    lane = tid % 32
    return lane // length, lane % length, 32 // length
