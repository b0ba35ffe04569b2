"""The host memory behind a source or a sink, where there is one."""

from __future__ import annotations

from ....executor.streams import DeviceStreams
from ...stores.arrays import ArraySink, ArraySource
from ...stores.conversion import ConvertedSource
from ...stores.matrix import Array, MatrixSink, MatrixSource, TransposedSource
from .staging import compact_lines


def memory_of(matrix: MatrixSource | MatrixSink) -> Array | None:
    """Return the array that a source or sink reads or writes, or None where it is something else."""
    if isinstance(matrix, TransposedSource):
        array = memory_of(matrix.source)
        return None if array is None else array.T
    return matrix.array if isinstance(matrix, ArraySource | ArraySink) else None


def direct_memory(matrix: MatrixSource | MatrixSink, order: str, device: DeviceStreams) -> Array | None:
    """Return the array behind a source or sink where copies can run from and to it at the full rate, else None."""
    array = memory_of(matrix)
    return array if array is not None and compact_lines(array, order) and device.direct(array) else None


def same_matrix(first: MatrixSource, second: MatrixSource) -> bool:
    """Whether two sources read the same matrix, in the same orientation."""
    if isinstance(first, TransposedSource) and isinstance(second, TransposedSource):
        return same_matrix(first.source, second.source)
    if isinstance(first, TransposedSource) or isinstance(second, TransposedSource):
        return False
    if first is second:
        return True
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if isinstance(first, ConvertedSource) and isinstance(second, ConvertedSource):
        # The same bytes, stored in different types, may be computed in the same one.
        return same_matrix(first.source, second.source)
    one, other = memory_of(first), memory_of(second)
    if one is not None and other is not None:
        return one.ctypes.data == other.ctypes.data and one.strides == other.strides and one.dtype == other.dtype
    # The name identifies a matrix of a store; the path shows that there is one.
    return (
        first.path is not None
        and (first.path, first.name, type(first)) == (second.path, second.name, type(second))
        and first.order == second.order
    )


def is_transpose(first: MatrixSource, second: MatrixSource) -> bool:
    """Whether the second source reads the transpose of the first."""
    if first.shape != second.shape[::-1]:
        return False
    one, other = memory_of(first), memory_of(second)
    if one is not None and other is not None:
        return one.ctypes.data == other.ctypes.data and one.strides == other.strides[::-1] and one.dtype == other.dtype
    return same_matrix(TransposedSource(first), second) or same_matrix(first, TransposedSource(second))
