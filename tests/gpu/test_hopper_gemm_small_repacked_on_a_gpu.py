"""A large unaligned operand that TMA loads as it is: layouts, leading dimensions, C, every config, repeated calls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.hopper.gemm_line_classes.spec import SPEC as LINE_CLASSES
from gemmule.runtime.device import get_device
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_small_repacked")
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
KIND = dtype_named("bfloat16")


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("shape", [(33, 3001, 1237), (2003, 77, 707), (130, 1002, 2214), (61, 70, 5)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_layouts(layout, shape, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n)), random_matrix(rng, KIND, (m, n))
    for out in ("row", "col"):
        kinds = (*layout, out)
        assert_product(multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=kinds), a, b)
        got = multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=kinds, c=c, alpha=0.75, beta=-1.5)
        assert_product(got, a, b, c, 0.75, -1.5)


@pytest.mark.parametrize("lines", ["row", "col"])
@pytest.mark.parametrize("config", LINE_CLASSES.configs, ids=lambda config: str(config).replace(" ", ","))
def test_configs(config, lines, rng):
    m, n, k = config.tile_m + 8, 1501, 2311
    a, b = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))
    got = multiply(LINE_CLASSES, a, b, poisoned(KIND, (m, n)), kinds=("col", lines, "row"), config=config)
    assert_product(got, a, b)


def test_repeated_calls_of_other_arrays(rng):
    cupy = pytest.importorskip("cupy")
    for _ in range(3):
        a, b = (cupy.asarray(rng.standard_normal(sides), dtype=np.float16) for sides in ((77, 5003), (5003, 6001)))
        got = cupy.asarray(gm.matmul(a, b)).get()
        assert_product(got, a.get(), b.get())
