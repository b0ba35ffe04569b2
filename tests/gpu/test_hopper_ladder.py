"""The steps to the last Hopper kernel on what the copy engine takes: ragged tiles, rings of stages, layouts, C."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

CONFIGS = [
    pytest.param(spec, config, id=f"{spec.name}-{config}".replace(" ", ","))
    for spec in REGISTRY
    if "h02" <= spec.name[:3] <= "h08"
    for config in spec.configs
]
#: Less than a box, less than a tile, every number of slices up to two rounds of the ring, more tiles than CTAs.
SHAPES = [
    (1, 8, 8),
    (65, 72, 24),
    *((130, 264, 64 * slices - 8) for slices in range(2, 13)),
    (1000, 1304, 712),
    (2049, 4104, 136),
]
LAYOUTS = list(itertools.product(("row", "col"), repeat=3))


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_shapes(spec, config, name, shape, rng):
    m, n, k = shape
    dtype = dtype_named(name)
    a, b, c = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n)), random_matrix(rng, dtype, (m, n))
    assert_product(multiply(spec, a, b, poisoned(dtype, (m, n)), config=config), a, b)
    got = multiply(spec, a, b, poisoned(dtype, (m, n)), c=c, alpha=0.75, beta=-1.5, config=config)
    assert_product(got, a, b, c, 0.75, -1.5)


@pytest.mark.parametrize("extent", [133, 134, 135])
@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_rows_that_end_anywhere(spec, config, extent, rng):
    """The pitch is a multiple of 8 elements, the extents are not, but for the result's where it is copied."""
    dtype, n = dtype_named("bfloat16"), 136 if spec.default.epi_tiles else extent
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((extent, 77), (77, n), (extent, n)))
    kinds = ("whole", "whole", "whole")
    got = multiply(spec, a, b, poisoned(dtype, c.shape), kinds=kinds, c=c, alpha=-1.0, beta=2.0, config=config)
    assert_product(got, a, b, c, -1.0, 2.0)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_layouts(spec, config, layout, rng):
    dtype = dtype_named("bfloat16")
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((264, 200), (200, 520), (264, 520)))
    got = multiply(spec, a, b, poisoned(dtype, c.shape), kinds=layout, c=c, alpha=-1.0, beta=0.5, config=config)
    assert_product(got, a, b, c, -1.0, 0.5)


@pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_a_batch_is_as_many_launches(spec, config, batch, rng):
    dtype = dtype_named("float16")
    a, b = (random_matrix(rng, dtype, (*batch, *shape)) for shape in ((71, 102), (102, 136)))
    out = poisoned(dtype, (*batch, 71, 136))
    got = multiply(spec, a, b, out, kinds=("whole", "whole", "whole"), batch=batch, config=config)
    assert_product(got, a, b)


@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_the_same_bits_every_time(spec, config, rng):
    dtype = dtype_named("bfloat16")
    a, b = random_matrix(rng, dtype, (1032, 2048)), random_matrix(rng, dtype, (2048, 4104))
    first, *others = (multiply(spec, a, b, poisoned(dtype, (1032, 4104)), config=config) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize(("spec", "config"), CONFIGS)
def test_small_integers_are_exact(spec, config, rng):
    dtype = dtype_named("bfloat16")
    a, b = (rng.integers(-3, 4, (512, 512)).astype(dtype.numpy()) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    got = multiply(spec, a, b, poisoned(dtype, (512, 512)), config=config)
    np.testing.assert_array_equal(got.view(np.uint16), exact.astype(dtype.numpy()).view(np.uint16))
