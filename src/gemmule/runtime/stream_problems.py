"""Problems of matrices in a GPU's memory, as its streams compute them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from gemmule.core.dtype import DType, accumulator, dtype_named
from gemmule.core.layout import StridedMatrix
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem, TransposeProblem
from gemmule.executor.streams import DeviceMatrix, DeviceProduct

#: Largest alignment that a problem states of an address.
_MOST_ALIGNMENT = 256


def sum_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that kernels sum products of these types in."""
    return accumulator(dtype_named(a.name), dtype_named(b.name)).numpy()


def rounding(target: DeviceMatrix, source: DeviceMatrix) -> DeviceProduct:
    """Return a rounding copy as a product of depth 0, to which the source is added."""
    own = dtype_named(target.dtype.name)
    factor = target.dtype if accumulator(own, own).name == source.dtype.name else source.dtype
    a = DeviceMatrix.compact(source.buffer, factor, target.rows, 0)
    b = DeviceMatrix.compact(source.buffer, factor, 0, target.cols)
    return DeviceProduct(a, b, target, 0, 1, source)


@functools.cache
def _own_dtype(dtype: np.dtype[Any]) -> DType:
    # NumPy puts the name together each time.
    return dtype_named(dtype.name)


def enlarged(problem: GemmProblem, m: int, n: int) -> GemmProblem:
    """Return a product with more rows and columns."""
    c = None if problem.c is None else dataclasses.replace(problem.c, rows=m, cols=n)
    needed = None if problem.needed is None else dataclasses.replace(problem.needed, first=0)
    return dataclasses.replace(
        problem, m=m, n=n, a=dataclasses.replace(problem.a, rows=m), b=dataclasses.replace(problem.b, cols=n), c=c,
        d=dataclasses.replace(problem.d, rows=m, cols=n), needed=needed,
    )  # fmt: skip


def strided(matrix: DeviceMatrix) -> StridedMatrix:
    """Describe a matrix as kernels take it."""
    dtype = _own_dtype(matrix.dtype)
    lead = matrix.pitch // dtype.itemsize
    strides = (lead, 1) if matrix.order == "C" else (1, lead)
    address = matrix.buffer + matrix.offset
    alignment = min((address & -address) or _MOST_ALIGNMENT, _MOST_ALIGNMENT)
    return StridedMatrix(dtype, matrix.rows, matrix.cols, *strides, (), alignment)


def transpose_of(target: DeviceMatrix, source: DeviceMatrix) -> TransposeProblem:
    """Describe the transpose of one matrix into another, with the indices of the target."""
    read, written = strided(source.T), strided(target)
    return transpose_problem(
        (written.rows, written.cols),
        (read.row_stride, read.col_stride),
        (written.row_stride, written.col_stride),
        written.dtype.itemsize,
        (read.alignment, written.alignment),
    )
