"""Reads and writes of elements and of vectors: contiguous elements of a row, in one access where tiles are whole."""

from __future__ import annotations

import cutlass
from cutlass import cute


@cute.jit
def read_vector(mX: cute.Tensor, row, col, length: cutlass.Constexpr[int], whole: cutlass.Constexpr[bool]):
    """Return X[row, col:col+length] in registers, zeros outside the matrix; `whole` promises that none is outside."""
    vector = cute.make_rmem_tensor(cute.make_layout(length), mX.element_type)
    if cutlass.const_expr(whole):
        cute.autovec_copy(_vector_at(mX, row, col, length), vector)
    else:
        vector.fill(mX.element_type(0))
        if row < mX.shape[0]:
            line = mX[row, None]
            for j in cutlass.range_constexpr(length):
                if col + j < line.shape[0]:
                    vector[j] = line[col + j]
    return vector


@cute.jit
def write_vector(
    mD: cute.Tensor, mC: cute.Tensor, row, col, vector: cute.Tensor, alpha, beta, whole: cutlass.Constexpr[bool]
):
    """Write D[row, col:] = alpha * vector + beta * C[row, col:], inside the matrix; `whole`: all is inside.

    C is read only where beta is not zero.
    """
    length = cutlass.const_expr(cute.size(vector))
    if cutlass.const_expr(whole):
        for j in cutlass.range_constexpr(length):
            vector[j] = alpha * vector[j]
        if beta != 0:
            addend = read_vector(mC, row, col, length, whole)
            for j in cutlass.range_constexpr(length):
                vector[j] += beta * addend[j]
        cute.autovec_copy(vector, _vector_at(mD, row, col, length))
    else:
        for j in cutlass.range(length, unroll_full=True):
            if row < mD.shape[0] and col + j < mD.shape[1]:
                write_element(mD, mC, row, col + j, vector[j], alpha, beta)


@cute.jit
def read_element(mX: cute.Tensor, row, col, whole: cutlass.Constexpr[bool]):
    """Return X[row, col], zero outside the matrix; `whole` promises that it is inside."""
    value = mX.element_type(0)
    if whole or (row < mX.shape[0] and col < mX.shape[1]):
        value = mX[row, col]
    return value


@cute.jit
def write_element(mD: cute.Tensor, mC: cute.Tensor, row, col, value, alpha, beta):
    """Write D[row, col] = alpha * value + beta * C[row, col]; C is read only where beta is not zero."""
    scaled = alpha * value
    if beta != 0:
        scaled += beta * mC[row, col]
    mD[row, col] = scaled


@cute.jit
def _vector_at(mX: cute.Tensor, row, col, length: cutlass.Constexpr[int]):
    """Return the vector in memory, its address assumed to be aligned for one access."""
    start = mX.iterator + cute.crd2idx((row, col), mX.layout)
    size = length * mX.element_type.width // 8
    known = cute.make_ptr(mX.element_type, start.toint(), mX.memspace, assumed_align=size)
    return cute.make_tensor(known, cute.make_layout(length))
