"""Which arrays share memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.errors import ArgumentError, OverlapError
from gemmule.executor.memory_overlap import overlaps_itself, share_memory

from .view import ArrayView


class _Memory:
    """Describes memory to NumPy, which compares addresses and never reads it."""

    def __init__(self, view: ArrayView) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": view.shape,
            "typestr": f"|V{view.itemsize}",
            "data": (view.address, True),
            "strides": tuple(stride * view.itemsize for stride in view.strides),
        }


def _as_memory(view: ArrayView) -> np.ndarray[Any, np.dtype[Any]]:
    return view.host if view.host is not None else np.asarray(_Memory(view))


def overlaps(first: ArrayView, second: ArrayView) -> bool:
    """Return whether two arrays share an element's memory."""
    if first.device != second.device or 0 in first.shape or 0 in second.shape:
        return False
    return share_memory(_as_memory(first), _as_memory(second))


def same_memory(first: ArrayView, second: ArrayView) -> bool:
    """Return whether two arrays are the same elements in the same order."""
    a, b = _as_memory(first), _as_memory(second)
    if first.dtype_name != second.dtype_name or a.shape != b.shape:
        return False
    same_place = a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    # The stride of an extent of 1 is never walked.
    walks = (n <= 1 or s == t for n, s, t in zip(a.shape, a.strides, b.strides, strict=True))
    return same_place and all(walks)


def check_output(out: ArrayView, inputs: dict[str, ArrayView], may_be_same: tuple[str, ...] = ()) -> None:
    """Refuse an output that cannot be written without spoiling something.

    Parameters
    ----------
    out : ArrayView
        The output.
    inputs : dict of str to ArrayView
        The inputs by name.
    may_be_same : tuple of str
        Inputs that may be the output itself, element for element.

    Raises
    ------
    ArgumentError
        If the output is read-only.
    OverlapError
        If it overlaps an input, or several of its own elements share memory.
    """
    if out.readonly:
        raise ArgumentError("out is read-only; pass a writable array, or no out")
    for name, view in inputs.items():
        if overlaps(out, view) and not (name in may_be_same and same_memory(out, view)):
            raise OverlapError(f"out shares memory with {name}; pass another array as out, or a copy of {name}")
    memory = _as_memory(out)
    if overlaps_itself(memory):
        raise OverlapError(
            f"elements of out may share memory (strides {memory.strides} bytes); pass an array of its own"
        )
