"""What lies between the elements of an array, in the memory that it is a view of: kernels must leave it alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def nothing_strays(array: np.ndarray) -> Iterator[None]:
    """Hold the memory around an array's elements against what it was: it may be written within them only."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    memory = root.reshape(-1).view(np.uint8)
    outside = np.ones(memory.size, np.bool_)
    first = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    bytes_of = (*array.shape, array.itemsize)
    np.lib.stride_tricks.as_strided(outside[first:], bytes_of, (*array.strides, 1))[...] = False
    before = memory.copy()
    yield
    strayed = int((memory != before)[outside].sum())
    assert not strayed, f"{strayed} bytes were written between the elements"
