"""The numbers that divide a grouped product: the groups' ends, or the numbers of rows' matrices."""

from __future__ import annotations

from typing import Any

from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.grouped_problem import OFFSETS
from gemmule.runtime.arrays import ArrayView

#: Extent that the groups divide.
_DIVIDED = {"m": "the rows of a", "n": "the columns of b", "k": "the columns of a"}


def check_numbers(role: str, view: ArrayView, library: str) -> None:
    """Refuse offsets, or numbers of matrices, that are not one dimension of int32."""
    if view.dtype_name != "int32" or len(view.shape) != 1:
        converted = ""
        if len(view.shape) == 1:
            converted = f", {f'{role}.int()' if library == 'torch' else f'{role}.astype(numpy.int32)'}"
        meaning = "the groups' ends" if role == OFFSETS else "the number of each row's matrix"
        raise DTypeError(
            f"{role} is {view.dtype_name} of shape {view.shape}; give {meaning} as one dimension of int32{converted}"
        )
    if view.host is None and view.shape[0] > 1 and view.strides[0] != 1:
        raise ArgumentError(f"{role} has a stride of {view.strides[0]} elements; pass a contiguous copy")


def check_ends(ends: Any, axis: str, extent: int) -> None:
    """Refuse offsets that decrease, begin below 0, or go past the extent of what they divide."""
    before = 0
    for group, end in enumerate(ends.tolist()):
        if not before <= end <= extent:
            least = "the end before it" if group else "where the first group begins"
            rule = f"at least {before}, {least}" if end < before else f"at most {extent}, {_DIVIDED[axis]}"
            raise ArgumentError(
                f"offsets[{group}] is {end}; it must be {rule}; for a list of group sizes pass "
                "numpy.cumsum(sizes, dtype=numpy.int32)"
            )
        before = end


def check_matrices(numbers: Any, count: int) -> None:
    """Refuse numbers that are none of so many matrices."""
    for row, number in enumerate(numbers.tolist()):
        if not 0 <= number < count:
            raise ArgumentError(
                f"matrices[{row}] is {number}; it must be at least 0 and below {count}, the matrices of b: leave out "
                "rows that have none"
            )
