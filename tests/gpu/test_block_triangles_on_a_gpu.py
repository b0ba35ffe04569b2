"""SYRK kernels on a GPU: the block lower triangle is right, all else untouched."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.dtype import dtype_named
from gemmule.dispatch.select import choose
from gemmule.executor.streams import DeviceMatrix, DeviceProduct, matrix_bytes
from gemmule.runtime.streams import GpuStreams
from support.oracle import assert_product, poisoned, random_matrix

#: Rows, columns before the first step, columns behind the last one, and the depth.
SHAPES = [(1, 0, 0, 1), (255, 256, 7, 70), (256, 0, 0, 64), (777, 0, 0, 131), (1300, 512, 33, 257), (3001, 256, 0, 65)]


@pytest.fixture
def device():
    with GpuStreams(choose) as opened:
        yield opened


def on_device(device, stream, array, order="C"):
    rows, cols = array.shape
    buffer = device.allocate(matrix_bytes(rows, cols, array.itemsize, order))
    matrix = DeviceMatrix.compact(buffer, array.dtype, rows, cols, order)
    device.copy_in(stream, matrix, np.asarray(array, order=order))
    return matrix


@pytest.mark.parametrize(("shape", "orders"), list(itertools.product(SHAPES, ("FC", "CF"))), ids=str)
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_what_is_needed_is_right(device, name, shape, orders):
    m, first, behind, k = shape
    n, dtype, rng = first + m + behind, dtype_named(name), np.random.default_rng()
    a, b, c = (random_matrix(rng, dtype, extents) for extents in ((m, k), (k, n), (m, n)))
    stream, needed = device.stream(), BlockTriangle(first, STEP)
    left, right = (on_device(device, stream, x, order) for x, order in zip((a, b), orders, strict=True))
    for beta in (0, 1):
        # A frame around the result shows what is written beyond it.
        whole = poisoned(dtype, (m + 2, n + 8))
        if beta:
            whole[1:-1, 4:-4] = c
        before = whole.copy()
        framed = on_device(device, stream, whole)
        d = framed.part(slice(1, m + 1), slice(4, n + 4))
        product = DeviceProduct(left, right, d, 1, beta, d if beta else None, needed=needed)
        device.multiply(stream, product)
        device.copy_out(stream, whole, framed)
        device.synchronize(device.record(stream))
        for row in range(0, m, STEP):
            part, cols = slice(row, min(row + STEP, m)), min(needed.columns(row), n)
            added = {"c": c[part, :cols], "alpha": 1, "beta": 1} if beta else {}
            assert_product(whole[1:-1, 4:-4][part, :cols], a[part], b[:, :cols], **added)
        before[1:-1, 4:-4] = whole[1:-1, 4:-4]
        np.testing.assert_array_equal(whole.view(np.uint8), before.view(np.uint8))
    assert device.stairs(DeviceProduct(left, right, d)) == (0 if name == "bfloat16" else STEP)
