"""float32 as six products of bfloat16 on the hardware: layouts, offsets, C, batches, configs; as exact as float32."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from gemmule.core.dtype import FLOAT32, Precision
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as PRODUCTS
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu import kernel_products
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.oracle import assert_product, poisoned, random_matrix

SPECS = {spec.name: spec for spec in REGISTRY}
SPEC, PLAIN = SPECS["bf16x6_gemm"], SPECS["simt_gemm"]
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
TILES = [pytest.param(config, id=str(config.tile_n)) for config in PRODUCTS.configs]
multiply = functools.partial(kernel_products.multiply, precision=Precision.BF16X6)


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


def with_tile(config):
    """The kernel, with the products in one config."""

    def next_kernel(*given):
        return dataclasses.replace(SPEC.next_kernel(*given), config=config)

    return dataclasses.replace(SPEC, next_kernel=next_kernel)


def matrices(rng, *shapes):
    return [random_matrix(rng, FLOAT32, shape) for shape in shapes]


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("out", ["padded", "row", "col"])
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("tile", TILES)
def test_layouts_and_offsets(tile, layout, out, offset, rng):
    m, n, k = 261, 517, 203
    a, b = matrices(rng, (m, k), (k, n))
    got = multiply(with_tile(tile), a, b, poisoned(FLOAT32, (m, n)), kinds=(*layout, out), offset=offset)
    assert_product(got, a, b)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 300, 64), (65, 71, 23), (128, 192, 640), (1001, 1303, 711), (2049, 519, 63)], ids=str
)
@pytest.mark.parametrize("tile", TILES)
def test_ragged_tiles_and_addends(tile, shape, rng):
    m, n, k = shape
    a, b, c = matrices(rng, (m, k), (k, n), (m, n))
    got = multiply(with_tile(tile), a, b, poisoned(FLOAT32, (m, n)), c=c, alpha=-1.0, beta=0.5)
    assert_product(got, a, b, c, -1.0, 0.5)


@pytest.mark.parametrize("kinds", [("row", "apart"), ("apart", "broadcast"), ("broadcast", "broadcast")], ids="-".join)
@pytest.mark.parametrize("batch", [(3,), (2, 4)], ids=str)
def test_batches(batch, kinds, rng):
    """One matrix for all of a batch is split once."""
    m, n, k = 71, 133, 101
    a, b = (
        np.broadcast_to(
            random_matrix(rng, FLOAT32, shape if kind == "broadcast" else (*batch, *shape)), (*batch, *shape)
        )
        for kind, shape in zip(kinds, ((m, k), (k, n)), strict=True)
    )
    got = multiply(SPEC, a, b, poisoned(FLOAT32, (*batch, m, n)), kinds=(*kinds, "apart"), batch=batch)
    assert_product(got, a, b)


def test_many_calls_without_waiting(rng):
    """Launches may overlap; workspaces that follow each other in the stream are the same memory."""
    m, n, k = 389, 261, 515
    arrays = [matrices(rng, (m, k), (k, n)) for _ in range(8)]
    held = []
    for a, b in arrays:
        held.append(
            [
                DeviceMatrix(FLOAT32, x.shape, strides_of("row", (), *x.shape)).put(x)
                for x in (a, b, poisoned(FLOAT32, (m, n)))
            ]
        )
    for da, db, dd in held:
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, dd.matrix(), precision=Precision.BF16X6)
        run_kernel(problem, Choice(SPEC, SPEC.default), {"a": da.address, "b": db.address, "d": dd.address}, 0, STREAM)
    for (a, b), (da, db, dd) in zip(arrays, held, strict=True):
        assert_product(dd.get(), a, b)
        for matrix in (da, db, dd):
            matrix.buffer.free()


def test_the_same_bits_every_time_and_for_every_power_of_two(rng):
    a, b = matrices(rng, (1031, 2048), (2048, 775))
    scale = np.float32(2.0**-30)
    first, *others = (multiply(SPEC, x, b, poisoned(FLOAT32, (1031, 775))) for x in (a, a, a, a * scale))
    others[-1] = others[-1] / scale
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


def test_small_integers_are_exact(rng):
    # 24 bits hold every sum.
    a, b = (rng.integers(-150, 151, (511, 511)).astype(np.float32) for _ in range(2))
    got = multiply(SPEC, a, b, poisoned(FLOAT32, (511, 511)))
    np.testing.assert_array_equal(got, a.astype(np.float64) @ b.astype(np.float64))


FAMILIES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "from 0 to 1": lambda rng, shape: rng.random(shape),
    "wide exponents": lambda rng, shape: (rng.random(shape) - 0.5) * np.exp(4 * rng.standard_normal(shape)),
    "wide, of one sign": lambda rng, shape: rng.random(shape) * np.exp(2 * rng.standard_normal(shape)),
}


@pytest.mark.parametrize("k", [1, 2, 16, 64, 1000, 16384])
@pytest.mark.parametrize("family", FAMILIES)
def test_as_exact_as_float32(family, k, rng):
    """Componentwise, in units of the last place: no worse than the float32 units, or than 3."""
    m, n = 130, 100
    a, b = (FAMILIES[family](rng, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) * FLOAT32.unit_roundoff
    split, plain = (multiply(spec, a, b, poisoned(FLOAT32, (m, n))) for spec in (SPEC, PLAIN))
    errors = [np.max(np.abs(got - exact) / size) for got in (split, plain)]
    # Both are the largest of many: a tenth is left to chance.
    assert errors[0] <= max(1.1 * errors[1], 3), errors


def test_near_overflow_and_what_is_not_finite(rng):
    most = np.finfo(np.float32).max
    a, b = np.diag(rng.uniform(0.99, 1, 70)).astype(np.float32) * most, np.eye(70, dtype=np.float32)
    np.testing.assert_array_equal(multiply(SPEC, a, b, poisoned(FLOAT32, (70, 70))), a)
    a[3, 4], a[5, 5] = np.inf, np.nan
    got = multiply(SPEC, a, b, poisoned(FLOAT32, (70, 70)))
    assert np.isnan(got[[3, 5]]).all()
    rest = np.delete(np.arange(70), [3, 5])
    np.testing.assert_array_equal(got[rest], a[rest])
