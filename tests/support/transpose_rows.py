"""Rows of transposes in memory of any alignment, and permutations of them on the virtual GPU."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.dtype import opaque_dtype
from gemmule.core.permutation import transpose_problem
from gemmule.core.spec import Choice
from gemmule.vgpu import Options
from gemmule.vgpu.arrays import virtual_address
from gemmule.vgpu.execute import run_kernel
from support.stray_writes import nothing_strays

ITEMSIZES = (1, 2, 4, 8, 16)
#: The least, the middle and the largest in every run; that all sizes are moved right is tested with every kernel.
SIZES = [pytest.param(size, marks=[] if size in (1, 4, 16) else [pytest.mark.slow]) for size in ITEMSIZES]


def rows_of(shape, itemsize, pad=0, offset=0):
    """Matrices whose rows are `pad` elements apart, `offset` elements into memory that ends with the last element."""
    *batch, rows, cols = shape
    pitch = cols + pad
    count = int(np.prod(batch)) * rows * pitch
    # A sector begins the storage.
    raw = np.empty((count + offset) * itemsize + 32, np.uint8)
    lead = -virtual_address(raw) % 32
    storage = raw[lead : lead + (count + offset) * itemsize].view(opaque_dtype(itemsize).numpy())
    return storage[offset:].reshape(*batch, rows, pitch)[..., :cols]


def random_rows(rng, *args, **kwargs):
    array = rows_of(*args, **kwargs)
    bits = rng.integers(0, 256, (*array.shape, array.itemsize), np.uint8)
    array[...] = np.ascontiguousarray(bits).view(array.dtype)[..., 0]
    return array


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


def permutation_between(moved, target):
    """The problem that copies a view to an array of the same shape."""
    strides = [tuple(stride // array.itemsize for stride in array.strides) for array in (moved, target)]
    alignments = [min((place & -place) or 256, 256) for place in map(virtual_address, (moved, target))]
    return transpose_problem(moved.shape, *strides, moved.itemsize, (alignments[0], alignments[1]))


def check_permutation(spec, config, moved, target):
    """Copy a view into poisoned memory, and hold every element against it."""
    target.view(np.uint8)[...] = 0x77
    problem = permutation_between(moved, target)
    with nothing_strays(target):
        run_kernel(problem, Choice(spec, config), {"a": moved, "d": target}, Options(checks=True))
    np.testing.assert_array_equal(bits(target), bits(moved))
