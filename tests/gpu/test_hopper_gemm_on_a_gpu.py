"""The Hopper kernel on what its copy engine takes: ragged tiles, all layouts, C, batches, every config."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import numpy as np
import pytest

from gemmule.core.dtype import FLOAT32, Precision, dtype_named
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.hopper.tile_config import CONSUMERS
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm")
LAYOUTS = list(itertools.product(("row", "col"), repeat=3))
CONFIGS = [pytest.param(config, id=str(config).replace(" ", ",")) for config in SPEC.configs]
TF32_CONFIGS = [
    one
    for one in SPEC.configs
    if not one.side_by_side and one.consumers == CONSUMERS and (one.tile_n <= 32 or one.tile_n % 32 == 0)
]


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


def shared(k, config):
    """At least as long a sum as the CTAs of a cluster share."""
    return max(k, 64 * config.cluster_k - 56)


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (65, 72, 24), (127, 264, 1000), (1000, 1304, 712), (2049, 520, 64)], ids=str
)
@pytest.mark.parametrize("config", CONFIGS)
def test_ragged_tiles(config, shape, rng):
    m, n, k = *shape[:2], shared(shape[2], config)
    # Batches are of the other type.
    kind = dtype_named("bfloat16")
    a, b, c = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n)), random_matrix(rng, kind, (m, n))
    assert_product(multiply(SPEC, a, b, poisoned(kind, (m, n)), config=config), a, b)
    got = multiply(SPEC, a, b, poisoned(kind, (m, n)), c=c, alpha=0.75, beta=-1.5, config=config)
    assert_product(got, a, b, c, 0.75, -1.5)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("config", CONFIGS)
def test_layouts(config, layout, rng):
    m, n, k = 264, 520, shared(200, config)
    kind = dtype_named("bfloat16")
    a, b, c = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n)), random_matrix(rng, kind, (m, n))
    got = multiply(SPEC, a, b, poisoned(kind, (m, n)), kinds=layout, c=c, alpha=-1.0, beta=0.5, config=config)
    assert_product(got, a, b, c, -1.0, 0.5)


@pytest.mark.parametrize("batch", [(3,), (200,), (2, 3)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_batches_of_whole_bytes(config, batch, rng):
    kind = dtype_named("float16")
    m, n, k = 71, 136, shared(102, config)
    a, b, c = (random_matrix(rng, kind, (*batch, *shape)) for shape in ((m, k), (k, n), (m, n)))
    kinds = ("whole", "whole", "whole")
    got = multiply(SPEC, a, b, poisoned(kind, (*batch, m, n)), kinds=kinds, batch=batch, config=config)
    assert_product(got, a, b)
    got = multiply(
        SPEC, a, b, poisoned(kind, (*batch, m, n)), kinds=kinds, c=c, alpha=2.0, beta=1.0, batch=batch, config=config
    )
    assert_product(got, a, b, c, 2.0, 1.0)


@pytest.mark.parametrize("out_kind", ["row", "col"])
@pytest.mark.parametrize("config", CONFIGS)
def test_output_in_float32(config, out_kind, rng):
    m, n, k = 200, 328, shared(136, config)
    kind, out = dtype_named("bfloat16"), dtype_named("float32")
    kinds = ("row", "row", out_kind) if out_kind == "row" else ("col", "col", "col")
    a, b, c = (random_matrix(rng, *what) for what in ((kind, (k, m)), (kind, (n, k)), (out, (n, m))))
    a, b, c = (x.T if out_kind == "col" else x.reshape(x.shape[::-1]) for x in (a, b, c))
    assert_product(multiply(SPEC, a, b, poisoned(out, (m, n)), kinds=kinds, config=config), a, b)
    got = multiply(SPEC, a, b, poisoned(out, (m, n)), kinds=kinds, c=c, alpha=0.5, beta=3.0, config=config)
    assert_product(got, a, b, c, 0.5, 3.0)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_same_bits_every_time(config, rng):
    kind = dtype_named("bfloat16")
    a, b = random_matrix(rng, kind, (1032, 2048)), random_matrix(rng, kind, (2048, 776))
    first, *others = (multiply(SPEC, a, b, poisoned(kind, (1032, 776)), config=config) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("config", CONFIGS)
def test_small_integers_are_exact(config, rng):
    kind = dtype_named("bfloat16")
    a, b = (rng.integers(-3, 4, (512, 512)).astype(kind.numpy()) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    got = multiply(SPEC, a, b, poisoned(kind, (512, 512)), config=config)
    np.testing.assert_array_equal(got.view(np.uint16), exact.astype(kind.numpy()).view(np.uint16))


@pytest.mark.parametrize("shape", [(64, 64, 128), (203, 332, 592), (130, 520, 1040)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_int8_is_exact(config, shape, rng):
    m, n, k = shape[0], shape[1], max(shape[2], 128 * config.cluster_k)
    kind, out = dtype_named("int8"), dtype_named("int32")
    a, b, c = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n)), random_matrix(rng, out, (m, n))
    kinds = ("row", "col", "row")
    assert_product(multiply(SPEC, a, b, poisoned(out, (m, n)), kinds=kinds, config=config), a, b)
    got = multiply(SPEC, a, b, poisoned(out, (m, n)), kinds=kinds, c=c, alpha=3, beta=-2, config=config)
    assert_product(got, a, b, c, 3, -2)


def to_tf32(x):
    """Round to 11 significand bits, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def tf32_product(a, b, config):
    m, n = a.shape[0], b.shape[1]
    with ExitStack() as stack:

        def device(values, kind):
            matrix = DeviceMatrix(FLOAT32, values.shape, strides_of(kind, (), *values.shape))
            return stack.enter_context(matrix).put(values)

        da, db, dd = device(a, "row"), device(b, "col"), device(poisoned(FLOAT32, (m, n)), "row")
        operands = (da.matrix(), db.matrix(), None, dd.matrix())
        problem = GemmProblem(m, n, a.shape[1], (), *operands, precision=Precision.TF32)
        assert SPEC.why_not(problem, get_device().arch, config) is None
        run_kernel(problem, Choice(SPEC, config), {"a": da.address, "b": db.address, "d": dd.address}, 0, STREAM)
        return dd.get()


@pytest.mark.parametrize("shape", [(256, 384, 512), (67, 44, 260), (260, 132, 300)], ids=str)
@pytest.mark.parametrize("config", TF32_CONFIGS, ids=str)
def test_tf32_rounds_to_nearest(config, shape, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    assert_product(tf32_product(a, b, config), to_tf32(a), to_tf32(b))


def test_how_the_copy_engine_rounds(rng):
    """A product with the identity is what the copy engine made of A: two ties, one on each side, then any values."""
    a = random_matrix(rng, FLOAT32, (256, 256))
    a[0, :4] = [1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, -1 - 3 * 2**-11]
    np.testing.assert_array_equal(tf32_product(a, np.eye(256, dtype=np.float32), SPEC.default), to_tf32(a))
