"""Products that pass through the GPU's memory in tiles, against a higher precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.dtype import accumulator, dtype_named
from gemmule.dispatch.select import choose
from gemmule.outofcore.device.engine.streaming import Settings, stream_product
from gemmule.outofcore.device.planner.choice import choose_plan
from gemmule.outofcore.device.planner.plan import DevicePlan
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.runtime.streams import GpuStreams
from support.oracle import assert_product, poisoned, random_matrix
from support.outofcore.simulated_runs import simulate

RATES = Rates(20e12, 20e12, 50e9, 50e9)
#: Shape, device memory: many tiles and slices, none of which divides.
SIZES = [((769, 645, 1003), 3 << 19), ((300, 1777, 70), 1 << 20), ((1, 513, 4099), 100_000)]
ORDERS_SIZE = ((500, 331, 403), 1 << 19)
SYMMETRIC_SIZE = ((477, 477, 1050), 3 << 19)
#: Height of tiles, of the strips that those on the diagonal are cut into, and streams that compute,
#: and, where kernels leave out what is above a staircase, the height of its steps.
DIAGONALS = [
    (605, 256, 1, 0), (605, 200, 4, 0), (384, 128, 2, 0), (200, 77, 3, 0), (605, 256, 2, 256), (520, 512, 1, 256),
    (300, 300, 2, 256), (512, 100, 3, 64),
]  # fmt: skip
CASES = [
    (strategy, dtype, size, pinned, beta)
    for strategy, dtype in itertools.product(
        ("five-buffers", "c-stationary", "panels"), ("float32", "float64", "bfloat16", "int8")
    )
    for size, pinned, beta in ((SIZES[0], True, 0), (SIZES[0], False, 2), (SIZES[1], True, 2), (SIZES[2], False, 0))
]


def planned(strategy, name, size, beta, orders="CC", *, symmetric=False):
    (m, n, k), memory = size
    dtype = dtype_named(name)
    out = dtype_named("int32") if name == "int8" else dtype
    a, b = (Operand(dtype.numpy(), order) for order in orders)
    product = Product(m, n, k, a, b, Operand(out.numpy()), Operand(out.numpy()) if beta else None)
    total = accumulator(dtype, dtype).numpy()
    if strategy == "panels":
        memory = max(memory, 3 * (m + n) * k * dtype.itemsize // 4)
    return choose_plan(product, total, memory, RATES, strategy=strategy, symmetric=symmetric)


@pytest.fixture
def device():
    # Closed after a failure was reported: the arrays that it shows lie in pinned memory.
    with GpuStreams(choose) as opened:
        yield opened


def in_pinned(device, array):
    memory = device.pinned(array.nbytes).view(array.dtype)
    order = "C" if array.flags.c_contiguous else "F"
    copy = memory.reshape(array.shape, order=order)
    copy[...] = array
    return copy


@pytest.mark.parametrize(("strategy", "name", "size", "pinned", "beta"), CASES)
def test_streamed_products(device, strategy, name, size, pinned, beta):
    chosen = planned(strategy, name, size, beta)
    m, n, k = size[0]
    rng = np.random.default_rng()
    dtype = dtype_named(name)
    out_dtype = dtype_named(chosen.plan.product.out.dtype.name)
    a, b, c = (random_matrix(rng, one, shape) for one, shape in ((dtype, (m, k)), (dtype, (k, n)), (out_dtype, (m, n))))
    alpha = 3 if name == "int8" else 0.5
    out = poisoned(out_dtype, (m, n))
    given = a, b, c
    if pinned:
        out, *given = (in_pinned(device, array) for array in (out, a, b, c))
    sources = {key: ArraySource(array, key) for key, array in zip("abc" if beta else "ab", given, strict=False)}
    streamed = stream_product(
        chosen.plan, sources, ArraySink(out), device, alpha=alpha, beta=beta, settings=Settings(1 << 20, 3)
    )
    assert_product(out, a, b, c, alpha, beta)
    assert device.moved == {"copy_in": chosen.prediction.bytes_in, "copy_out": chosen.prediction.bytes_out}
    assert bool(streamed.staged) == (not pinned)
    assert len(list(chosen.plan.steps())) > 1


@pytest.mark.parametrize("orders", ["FC", "CF", "FF"])
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_orders(device, orders, name):
    size = ORDERS_SIZE
    chosen = planned("c-stationary", name, size, 0, orders)
    m, n, k = size[0]
    rng = np.random.default_rng()
    dtype = dtype_named(name)
    a, b = (
        np.asarray(random_matrix(rng, dtype, shape), order=order)
        for shape, order in zip(((m, k), (k, n)), orders, strict=True)
    )
    for pinned in (True, False):
        out = poisoned(dtype, (m, n))
        given = [in_pinned(device, array) if pinned else array for array in (a, b)]
        sources = {key: ArraySource(array, key) for key, array in zip("ab", given, strict=True)}
        stream_product(chosen.plan, sources, ArraySink(out), device, settings=Settings(1 << 20, 2))
        assert_product(out, a, b)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int8"])
def test_a_matrix_times_its_transpose(device, strategy, name, pinned):
    size = SYMMETRIC_SIZE
    chosen = planned(strategy, name, size, 0, "CF", symmetric=True)
    dtype = dtype_named(name)
    a = random_matrix(np.random.default_rng(), dtype, (477, 1050))
    out = poisoned(dtype_named("int32") if name == "int8" else dtype, (477, 477))
    given = in_pinned(device, a)
    out = in_pinned(device, out) if pinned else out
    sources = {"a": ArraySource(given), "b": ArraySource(given.T)}
    streamed = stream_product(chosen.plan, sources, ArraySink(out), device)
    assert streamed.staged == (() if pinned else ("out",))
    assert device.moved == {"copy_in": chosen.prediction.bytes_in, "copy_out": out.nbytes}
    if strategy == "resident-c":
        assert device.moved["copy_in"] == a.nbytes
    assert_product(out, a, np.ascontiguousarray(a.T))
    np.testing.assert_array_equal(out, out.T)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize(("tile", "cut", "lanes", "stairs"), DIAGONALS)
@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_strips_of_the_diagonal(device, strategy, name, tile, cut, lanes, stairs, pinned):
    n, k = 605, 530
    dtype = dtype_named(name)
    tiles = -(-n // tile)
    held, slots = (tiles * (tiles + 1) // 2, 2 * tiles) if strategy == "resident-c" else (min(tiles, 2), 4)
    product = Product(n, n, k, Operand(dtype.numpy(), "F"), Operand(dtype.numpy()), Operand(dtype.numpy()))
    plan = DevicePlan(
        product, accumulator(dtype, dtype).name, strategy, tile, tile, 150, held, (slots, 0), symmetric=True, strips=2,
        cut=cut, lanes=lanes, stairs=stairs,
    )  # fmt: skip
    prediction = simulate(plan, RATES)[0]
    a = random_matrix(np.random.default_rng(), dtype, (k, n))
    out = poisoned(dtype, (n, n))
    given, out = (in_pinned(device, array) if pinned else array for array in (a, out))
    streamed = stream_product(plan, {"a": ArraySource(given.T), "b": ArraySource(given)}, ArraySink(out), device)
    assert device.moved == {"copy_in": prediction.bytes_in, "copy_out": prediction.bytes_out}
    assert streamed.flop == prediction.flop
    assert_product(out, np.ascontiguousarray(a.T), a)
    np.testing.assert_array_equal(out, out.T)
