"""How a transpose of a tile on a device is described to the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.dispatch.select import choose
from gemmule.executor.streams import DeviceMatrix
from gemmule.runtime.stream_problems import transpose_of

HOPPER = Arch.parse("sm_90a")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (70, 1), (45, 70)])
def test_every_element_goes_to_its_place(dtype, shape, rng):
    rows, cols = shape
    source = DeviceMatrix.compact(0, np.dtype(dtype), rows, cols)
    target = DeviceMatrix.compact(1 << 20, np.dtype(dtype), cols, rows)
    problem = transpose_of(target, source)
    element = problem.source.dtype.numpy()
    # Lines are a pitch apart in both.
    given = rng.integers(0, 256, (rows, source.pitch), np.uint8).view(element)
    result = np.zeros((cols, target.pitch), np.uint8).view(element)

    def seen(memory, matrix):
        strides = [stride * element.itemsize for stride in (matrix.row_stride, matrix.col_stride)]
        return np.lib.stride_tricks.as_strided(memory, (problem.rows, problem.cols), strides)

    seen(result, problem.target)[...] = seen(given, problem.source)
    assert (result[:, :rows] == given[:, :cols].T).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_large_tiles_are_transposed_by_the_production_kernel(dtype):
    source, target = (DeviceMatrix.compact(address, np.dtype(dtype), 4096, 4096) for address in (1 << 20, 1 << 30))
    assert choose(transpose_of(target, source), HOPPER, multiprocessors=132).spec.name == "transpose_tiled"
