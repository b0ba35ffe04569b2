"""A warpgroup's accumulators after wgmma: which thread holds which, and how threads write them without TMA."""

from __future__ import annotations

import cutlass
from cutlass import Uint32, cute

from gemmule.kernels.parts.words import words_at


@cute.jit
def write_accumulators(matrices, accumulators: cute.Tensor, place, block, scale):
    """Write D = alpha * accumulators + beta * C inside the matrix, two contiguous elements of a row at once.

    A thread has, of every 64 rows and 8 columns, two contiguous elements of one row and those of the row 8 below.

    Parameters
    ----------
    matrices : tuple of Tensor
        C, or None, and D: row-major matrices of 16-bit elements, whose rows begin at multiples of 4 bytes.
    accumulators : Tensor
        This thread's accumulators of blocks of 64 rows.
    place : tuple of int
        Row and column at which the first block of this warpgroup begins.
    block : tuple of int
        Columns of the blocks, and rows from one of this warpgroup's to its next.
    scale : tuple
        Alpha and beta.
    """
    tid, _, _ = cute.arch.thread_idx()
    _, mD = matrices
    cols, row_block_stride = block
    row0, col0 = place[0] + tid // 32 % 4 * 16 + tid % 32 // 4, place[1] + tid % 4 * 2
    flat = _settled(accumulators)
    for half_row in cutlass.range_constexpr(cute.size(accumulators) * 4 // cols):
        number, half = cutlass.const_expr(half_row // 2), cutlass.const_expr(half_row % 2)
        row = row0 + number * row_block_stride + half * 8
        if row < mD.shape[0]:
            for j in cutlass.range(cols // 8, unroll_full=True):
                first = number * cols // 2 + j * 4 + half * 2
                _write_pair(matrices, (row, col0 + j * 8), flat, first, scale)


@cute.jit
def _settled(accumulators: cute.Tensor):
    """Return accumulators after a wait for their wgmma group, flat, in registers that no wgmma writes.

    The compiler sees no dependence of these registers on the wait, so that it may move arithmetic on them before
    it; the assembler then serialises every wgmma. It moves nothing before this.
    """
    out = cute.make_rmem_tensor(cute.make_layout(cute.size(accumulators)), cutlass.Float32)
    flat = cute.make_tensor(accumulators.iterator, out.layout)
    for i in cutlass.range(cute.size(out), unroll_full=True):
        out[i] = cute.arch.inline_ptx(
            "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Float32], read_only_args=[flat[i]]
        )
    return out


@cute.jit
def _write_pair(matrices, place, flat: cute.Tensor, first, scale):
    """Write two contiguous elements of a row, or the one that is inside the matrix."""
    mC, mD = matrices
    (row, col), (alpha, beta) = place, scale
    pair = cute.make_rmem_tensor(cute.make_layout(2), mD.element_type)
    word = cute.recast_tensor(pair, Uint32)
    if col + 1 < mD.shape[1]:
        values = cute.make_rmem_tensor(cute.make_layout(2), cutlass.Float32)
        for v in cutlass.range_constexpr(2):
            values[v] = flat[first + v] * alpha
        if cutlass.const_expr(mC is not None):
            word[0] = words_at(mC.iterator + cute.crd2idx((row, col), mC.layout), 1)[0]
            for v in cutlass.range_constexpr(2):
                values[v] = values[v] + beta * pair[v].to(cutlass.Float32)
        pair.store(values.load().to(mD.element_type))
        words_at(mD.iterator + cute.crd2idx((row, col), mD.layout), 1)[0] = word[0]
    elif col < mD.shape[1]:
        value = flat[first] * alpha
        if cutlass.const_expr(mC is not None):
            value = value + beta * mC[row, col].to(cutlass.Float32)
        mD[row, col] = value.to(mD.element_type)
