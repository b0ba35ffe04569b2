"""Operands of small grouped products, and their results by NumPy."""

from __future__ import annotations

import itertools

import numpy as np

import gemmule as gm

#: Shapes of A and B by the axis that the groups divide.
SHAPES = {"m": ((9, 5), (3, 5, 4)), "n": ((3, 4, 5), (5, 9)), "k": ((4, 9), (9, 5))}


def given(axis, rng, ends=(2, 2, 7), dtype=np.float64):
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in SHAPES[axis])
    return a, b, np.array(ends, np.int32)


def grouped_gemm(*arrays, executor, **options):
    """Call gm.grouped_gemm; on the virtual GPU as on a chip, where small tiles are chosen, which compile fast."""
    chip = "h200" if executor == "vgpu" else None
    return gm.grouped_gemm.plan(*arrays, executor=executor, chip=chip, **options).execute()


def expected(axis, a, b, ends):
    parts = [slice(*pair) for pair in itertools.pairwise((0, *ends.tolist()))]
    if axis == "k":
        return np.stack([a[:, part] @ b[part] for part in parts])
    found = np.zeros((a.shape[-2], b.shape[-1]))
    for group, part in enumerate(parts):
        if axis == "m":
            found[part] = a[part] @ b[group]
        else:
            found[:, part] = a[group] @ b[:, part]
    return found
