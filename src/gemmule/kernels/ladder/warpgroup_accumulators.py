"""The sums of a warpgroup after wgmma: which thread holds which, and how threads write them by themselves."""

from __future__ import annotations

import cutlass
from cutlass import Uint32, cute

from gemmule.kernels.parts.words import words_at


@cute.jit
def write_sums(
    mD: cute.Tensor,
    mC: cute.Tensor,
    sums: cute.Tensor,
    m0,
    n0,
    cols: cutlass.Constexpr[int],
    rows_apart: cutlass.Constexpr[int],
    alpha,
    beta,
    reads_c: cutlass.Constexpr[bool],
):
    """Write D = alpha * sums + beta * C inside the matrix, two neighbours of a row at once.

    A thread has, of every 64 rows and 8 columns, two neighbours of one row and those of the row 8 below.

    Parameters
    ----------
    mD, mC : Tensor
        Row-major matrices of 16-bit elements, whose rows begin at multiples of 4 bytes.
    sums : Tensor
        This thread's sums of blocks of 64 rows.
    m0, n0 : int
        Where the first block of this warpgroup begins.
    cols, rows_apart : int
        Columns of the blocks, and rows from one of this warpgroup to its next.
    reads_c : bool
        Whether there is a C.
    """
    tid, _, _ = cute.arch.thread_idx()
    row0, col0 = m0 + tid // 32 % 4 * 16 + tid % 32 // 4, n0 + tid % 4 * 2
    flat = settled(sums)
    for half_row in cutlass.range_constexpr(cute.size(sums) * 4 // cols):
        block, half = cutlass.const_expr(half_row // 2), cutlass.const_expr(half_row % 2)
        row = row0 + block * rows_apart + half * 8
        if row < mD.shape[0]:
            for j in cutlass.range(cols // 8, unroll_full=True):
                first = block * cols // 2 + j * 4 + half * 2
                _write_pair(mD, mC, row, col0 + j * 8, flat, first, alpha, beta, reads_c)


@cute.jit
def settled(sums: cute.Tensor):
    """Return the sums of a product that has been waited for, flat, in registers that no product writes.

    The compiler knows of no tie between a wait and the registers that it waits for, so that it may move arithmetic on
    them before the wait; the assembler then makes every product wait for the one before. It moves nothing before this.
    """
    out = cute.make_rmem_tensor(cute.make_layout(cute.size(sums)), cutlass.Float32)
    flat = cute.make_tensor(sums.iterator, out.layout)
    for i in cutlass.range(cute.size(out), unroll_full=True):
        out[i] = cute.arch.inline_ptx(
            "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Float32], read_only_args=[flat[i]]
        )
    return out


@cute.jit
def _write_pair(
    mD: cute.Tensor,
    mC: cute.Tensor,
    row,
    col,
    flat: cute.Tensor,
    first,
    alpha,
    beta,
    reads_c: cutlass.Constexpr[bool],
):
    """Write two neighbours of a row, or the one that is inside the matrix."""
    pair = cute.make_rmem_tensor(cute.make_layout(2), mD.element_type)
    word = cute.recast_tensor(pair, Uint32)
    if col + 1 < mD.shape[1]:
        values = cute.make_rmem_tensor(cute.make_layout(2), cutlass.Float32)
        for v in cutlass.range_constexpr(2):
            values[v] = flat[first + v] * alpha
        if cutlass.const_expr(reads_c):
            word[0] = words_at(mC.iterator + cute.crd2idx((row, col), mC.layout), 1)[0]
            for v in cutlass.range_constexpr(2):
                values[v] = values[v] + beta * pair[v].to(cutlass.Float32)
        pair.store(values.load().to(mD.element_type))
        words_at(mD.iterator + cute.crd2idx((row, col), mD.layout), 1)[0] = word[0]
    elif col < mD.shape[1]:
        value = flat[first] * alpha
        if cutlass.const_expr(reads_c):
            value = value + beta * mC[row, col].to(cutlass.Float32)
        mD[row, col] = value.to(mD.element_type)
