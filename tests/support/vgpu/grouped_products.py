"""Grouped products by single kernels on the virtual GPU, all checks on, with what no group owns poisoned."""

from __future__ import annotations

import itertools

import numpy as np

from gemmule.core.dtype import BFLOAT16
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import poisoned
from support.stray_writes import nothing_strays
from support.vgpu.kernel_products import matrix

#: Extents along which groups are, of M, N and K.
EXTENT = 152
#: Empty groups, first, last and in between, groups of one, and one that ends before the last row.
ENDS = {"some are empty": (0, 3, 3, 70, 71, 152), "not all rows": (64, 128, 128, 129), "one": (152,), "none": (0, 0)}


def operand(rng, dtype, shape, kind):
    """Integers, whose sums are exact, laid out by rows or by columns."""
    if kind == "col":
        return operand(rng, dtype, (*shape[:-2], shape[-1], shape[-2]), "row").swapaxes(-1, -2)
    return rng.integers(-4, 5, shape).astype(dtype.numpy())


def shapes_of(axis, groups, sizes, extent):
    """Shapes of A, B and D, for the two extents that are not divided."""
    x, y = sizes
    return {
        "m": ((extent, x), (groups, x, y), (extent, y)),
        "n": ((groups, x, y), (y, extent), (x, extent)),
        "k": ((x, extent), (extent, y), (groups, x, y)),
    }[axis]


def multiply(rng, axis, ends, choice, *, dtype=BFLOAT16, out=None, sizes=(72, 136), kinds=None, extent=EXTENT):
    """Compute groups along an axis, and hold them against NumPy; what is in no group holds NaN."""
    a_shape, b_shape, d_shape = shapes_of(axis, len(ends), sizes, extent)
    kinds = kinds or {"m": ("row", "col"), "n": ("row", "col"), "k": ("col", "row")}[axis]
    a, b = (operand(rng, dtype, shape, kind) for shape, kind in zip((a_shape, b_shape), kinds, strict=True))
    if axis in "mk":
        (a if axis == "m" else a.T)[ends[-1] :] = np.nan
    if axis in "nk":
        (b.T if axis == "n" else b)[ends[-1] :] = np.inf
    d = poisoned(out or dtype, d_shape)
    problem = GroupedProblem(axis, a.shape[-2], b.shape[-1], a.shape[-1], len(ends), matrix(a), matrix(b), matrix(d))
    assert choice.spec.why_not(problem, virtual_arch(), choice.config) is None
    arrays = {"a": a, "b": b, "offsets": np.array(ends, np.int32), "d": d}
    with nothing_strays(d):
        run_kernel(problem, choice, arrays, Options(checks=True))
    np.testing.assert_array_equal(d.astype(np.float32), expected(axis, a, b, d, ends))


def expected(axis, a, b, d, ends):
    a, b = a.astype(np.float32), b.astype(np.float32)
    found = np.zeros(d.shape, np.float32)
    for group, (start, end) in enumerate(itertools.pairwise((0, *ends))):
        part = slice(start, max(start, end))
        if axis == "m":
            found[part] = a[part] @ b[group]
        elif axis == "n":
            found[:, part] = a[group] @ b[:, part]
        else:
            found[group] = a[:, part] @ b[part]
    return found.astype(d.dtype).astype(np.float32)
