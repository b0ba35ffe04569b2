"""C whose rows are all the same one, at a row stride of 0: kernels read it in place, as a layer's bias."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from support.oracle import assert_product


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", (77, 129, 65)),
        ("float32", (3, 40, 0)),
        ("float64", (77, 129, 65)),
        pytest.param("complex64", (33, 70, 17), marks=pytest.mark.slow),
        ("complex128", (33, 70, 17)),
    ],
    ids=str,
)
def test_one_row_of_c_is_read_in_place(rng, dtype, shape):
    def made(*extents):
        values = rng.standard_normal(extents)
        return (values + 1j * rng.standard_normal(extents) if dtype.startswith("complex") else values).astype(dtype)

    m, n, k = shape
    a, b, row = made(m, k), made(k, n), made(n)
    out, c = np.full((m, n), np.nan, dtype), np.broadcast_to(row, (m, n))
    options = {"beta": 0.5, "out": out, "executor": "vgpu", "chip": "h200"}
    plan = gm.gemm.plan(a, b, c, **options)
    full = gm.gemm.plan(a, b, c.copy(), **options)
    assert (plan.kernel, plan.config, plan.next_kernel) == (full.kernel, full.config, full.next_kernel)
    plan.execute()
    assert_product(out, a, b, c, 1, 0.5)
