"""Every GEMM kernel of the registry on the hardware, from its artifact and recipe: dtypes, shapes, strides, batches."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import DTYPES, Kind, accumulator, dtype_named
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

GEMMS = [spec for spec in REGISTRY if spec.operation == "gemm"]
HOPPER = Arch.parse("sm_90a")


def output_types(dtype):
    return dict.fromkeys((dtype, accumulator(dtype, dtype)))


def takes(spec, config, dtype, out):
    """Whether the kernel takes contiguous matrices of those types at all."""
    a, d = contiguous(dtype, 8, 8), contiguous(out, 8, 8)
    return spec.why_not(GemmProblem(8, 8, 8, (), a, a, None, d), HOPPER, config) is None


#: Every kernel, each config, each pair of types that it takes; and kernels with types in their default config.
CASES = [
    pytest.param(spec, config, dtype, out, id=f"{spec.name}-{config}-{dtype}-{out}".replace(" ", ","))
    for spec in GEMMS
    for config in spec.configs
    for dtype in DTYPES
    for out in output_types(dtype)
    if takes(spec, config, dtype, out)
]
TYPED = [
    pytest.param(spec, dtype, id=f"{spec.name}-{dtype}")
    for spec in GEMMS
    for dtype in DTYPES
    if any(takes(spec, spec.default, dtype, out) for out in output_types(dtype))
]
FLOATS = [
    pytest.param(spec, name, id=spec.name)
    for spec in GEMMS
    for name in ("float32", "float64")
    if takes(spec, spec.default, dtype_named(name), dtype_named(name)) and "reference" not in spec.name
] + [pytest.param(spec, "float32", id=spec.name) for spec in GEMMS if "reference" in spec.name]
#: Ones, primes, tiles and their neighbours, extents that every tile divides, and some that only 16-byte copies divide.
SHAPES = [
    (1, 1, 1),
    (1, 1, 300),
    (2, 3, 1),
    (63, 65, 17),
    (64, 64, 16),
    (65, 63, 15),
    (127, 129, 131),
    (191, 1, 64),
    (1, 200, 33),
    (384, 512, 96),
    (768, 256, 8),
    (260, 132, 100),
    (256, 384, 20),
]
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("spec", "config", "dtype", "out"), CASES)
def test_dtypes_and_shapes(spec, config, dtype, out, shape, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n)), random_matrix(rng, out, (m, n))
    assert_product(multiply(spec, a, b, poisoned(out, (m, n)), config=config), a, b)
    alpha, beta = (3, -2) if out.kind is Kind.INTEGER else (0.75, -1.5)
    got = multiply(spec, a, b, poisoned(out, (m, n)), c=c, alpha=alpha, beta=beta, config=config)
    assert_product(got, a, b, c, alpha, beta)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("out_kind", ["row", "col"])
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("shape", [(67, 35, 45), (256, 96, 512)], ids=str)
@pytest.mark.parametrize(("spec", "dtype"), TYPED)
def test_layouts_and_misaligned_pointers(spec, dtype, shape, layout, out_kind, offset, rng):
    m, k, n = shape
    a, b = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n))
    out = poisoned(accumulator(dtype, dtype), (m, n))
    assert_product(multiply(spec, a, b, out, kinds=(*layout, out_kind), offset=offset), a, b)


@pytest.mark.parametrize("kind", ["padded", "gapped", "reversed", "broadcast"])
@pytest.mark.parametrize(("spec", "dtype"), TYPED)
def test_strides_of_any_kind(spec, dtype, kind, rng):
    batch = (2, 3)
    rows = (1, 1) if kind == "broadcast" else batch
    a, b = random_matrix(rng, dtype, (*rows, 37, 21)), random_matrix(rng, dtype, (*rows, 21, 70))
    out_kind = "row" if kind == "broadcast" else kind
    got = multiply(spec, a, b, poisoned(dtype, (*batch, 37, 70)), kinds=(kind, kind, out_kind), batch=batch)
    assert_product(got, np.broadcast_to(a, (*batch, 37, 21)), b)


@pytest.mark.parametrize("batch", [(1,), (5,), (70000,), (2, 3, 4, 2), (2, 40000)], ids=str)
@pytest.mark.parametrize(("spec", "dtype"), TYPED)
def test_batches(spec, dtype, batch, rng):
    many = np.prod(batch) > 10000
    if many and spec.batch_dims == 0:
        pytest.skip("one launch for each matrix")
    m, n, k = (3, 2, 4) if many else (33, 17, 9)
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    assert_product(multiply(spec, a, b, poisoned(dtype, (*batch, m, n)), batch=batch), a, b)


@pytest.mark.parametrize(("spec", "dtype"), TYPED)
def test_a_batch_whose_later_matrices_are_not_aligned(spec, dtype, rng):
    """Whole tiles, aligned rows, and an odd number of elements from one matrix to the next."""
    m, n, k, batch = 256, 256, 32, (2, 2)
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    kinds = ("apart", "apart", "apart")
    assert_product(multiply(spec, a, b, poisoned(dtype, (*batch, m, n)), kinds=kinds, batch=batch), a, b)


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize(("spec", "name"), FLOATS)
def test_nothing_to_multiply(spec, name, shape, rng):
    dtype = dtype_named(name)
    m, n, k = shape
    a, b, c = (random_matrix(rng, dtype, s) for s in ((m, k), (k, n), (m, n)))
    np.testing.assert_array_equal(multiply(spec, a, b, poisoned(dtype, (m, n))), np.zeros((m, n), name))
    np.testing.assert_array_equal(multiply(spec, a, b, poisoned(dtype, (m, n)), c=c, beta=2.0, alpha=0.0), 2 * c)


@pytest.mark.parametrize("extent", [20, 768])
@pytest.mark.parametrize(("spec", "name"), FLOATS)
def test_unread_operands_do_not_spread_their_nans(spec, name, extent, rng):
    nan = np.full((extent, extent), np.nan, name)
    a, b = (rng.standard_normal((extent, extent)).astype(name) for _ in range(2))
    assert_product(multiply(spec, a, b, nan.copy(), c=nan, beta=0.0), a, b)
    np.testing.assert_array_equal(multiply(spec, nan, nan, nan.copy(), c=a, alpha=0.0, beta=1.0), a)


@pytest.mark.parametrize(
    "mixed",
    [("float16", "float32"), ("int8", "float16"), ("float8_e4m3fn", "float8_e5m2"), ("int32", "float32")],
    ids=str,
)
@pytest.mark.parametrize("spec", [spec for spec in GEMMS if "reference" in spec.name], ids=lambda spec: spec.name)
def test_mixed_inputs(spec, mixed, rng):
    first, second = map(dtype_named, mixed)
    a, b = random_matrix(rng, first, (70, 33)), random_matrix(rng, second, (33, 50))
    assert_product(multiply(spec, a, b, poisoned(dtype_named("float32"), (70, 50))), a, b)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("spec", [spec for spec in GEMMS if "reference" in spec.name], ids=lambda spec: spec.name)
def test_8_bit_floats_saturate(spec, dtype):
    kind = dtype_named(dtype)
    a = np.full((16, 64), kind.max_value).astype(kind.numpy())
    got = multiply(spec, a, a.T.copy(), poisoned(kind, (16, 16))).astype(np.float32)
    assert (got == kind.max_value).all()


@pytest.mark.parametrize("extent", [257, 768])
@pytest.mark.parametrize(("spec", "name"), FLOATS)
def test_same_inputs_same_bits(spec, name, extent, rng):
    a, b = (rng.standard_normal((extent, extent)).astype(name) for _ in range(2))
    first, second = (multiply(spec, a, b, poisoned(dtype_named(name), (extent, extent))) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("spec", [spec for spec in GEMMS if "reference" in spec.name], ids=lambda spec: spec.name)
def test_a_cluster_launch_covers_the_same_tiles(spec, rng):
    """The runtime honours a recipe's cluster; the kernel does not care."""
    if get_device().capability < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    clustered = dataclasses.replace(
        spec, launch=lambda problem, config: dataclasses.replace(spec.launch(problem, config), cluster=(2, 1, 1))
    )
    a, b = (rng.standard_normal((128, 128)).astype(np.float32) for _ in range(2))
    assert_product(multiply(clustered, a, b, poisoned(dtype_named("float32"), (128, 128))), a, b)


@pytest.mark.parametrize("spec", [spec for spec in GEMMS if "reference" in spec.name], ids=lambda spec: spec.name)
def test_a_grid_smaller_than_the_tiles_goes_round(spec, rng):
    """What happens beyond 2**31 tiles, with 3 CTAs."""
    looping = dataclasses.replace(
        spec, launch=lambda problem, config: dataclasses.replace(spec.launch(problem, config), grid=(3, 1, 1))
    )
    a, b = (
        random_matrix(rng, dtype_named("float32"), (2, 3, 130, 33)),
        random_matrix(rng, dtype_named("float32"), (2, 3, 33, 190)),
    )
    got = multiply(looping, a, b, poisoned(dtype_named("float32"), (2, 3, 130, 190)), batch=(2, 3))
    assert_product(got, a, b)
