"""mma_sync_gemm on the hardware with float32 rounded to TF32, which is the one thing that it needs to be asked for."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import numpy as np
import pytest

from gemmule.core.dtype import FLOAT32, Precision
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.kernels.mma_sync.spec import SPEC
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix


def to_tf32(x):
    """Round to 11 significand bits, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("layout", list(itertools.product(("row", "col"), repeat=2)), ids="-".join)
@pytest.mark.parametrize("shape", [(256, 384, 512), (67, 45, 35), (260, 132, 100)], ids=str)
def test_tf32_rounds_to_nearest(shape, layout, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    with ExitStack() as stack:

        def device(values, kind):
            matrix = DeviceMatrix(FLOAT32, values.shape, strides_of(kind, (), *values.shape))
            return stack.enter_context(matrix).put(values)

        da, db, dd = device(a, layout[0]), device(b, layout[1]), device(poisoned(FLOAT32, (m, n)), "row")
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, dd.matrix(), precision=Precision.TF32)
        assert SPEC.why_not(problem, get_device().arch, SPEC.default) is None
        run_kernel(problem, Choice(SPEC, SPEC.default), {"a": da.address, "b": db.address, "d": dd.address}, 0, STREAM)
        assert_product(dd.get(), to_tf32(a), to_tf32(b))


@pytest.mark.parametrize("config", [one for one in SPEC.configs if one.cluster_k > 1], ids=lambda one: one.cluster_k)
@pytest.mark.parametrize("layout", [("row", "col"), ("col", "row")], ids="-".join)
@pytest.mark.parametrize("shape", [(64, 64, 4096), (67, 209, 1229), (285, 175, 5531), (65, 70, 3)], ids=str)
def test_clusters_split_k(shape, layout, config, rng):
    if get_device().capability < (9, 0):
        pytest.skip("needs clusters")
    (m, n, k), precision = shape, Precision.TF32
    a, b, c = (rng.integers(-3, 3, x, endpoint=True).astype(np.float32) for x in ((m, k), (k, n), (m, n)))
    results = [
        multiply(
            SPEC, a, b, poisoned(FLOAT32, (m, n)), kinds=(*layout, "row"), c=c, alpha=2, beta=-1, config=config,
            precision=precision,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert_product(results[0], a, b, c, 2, -1)
    np.testing.assert_array_equal(*results)
