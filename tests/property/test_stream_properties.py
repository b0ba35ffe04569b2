"""Products through a device equal those in memory, and cover each element once, for any shape, budget and strategy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmule.host.streams import HostStreams
from gemmule.outofcore.device.engine.streaming import Settings, stream_product
from gemmule.outofcore.device.planner.choice import choose_plan, least_memory
from gemmule.outofcore.device.planner.operation import Multiply, Store
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.plan import Operand, Product

F4 = np.dtype("f4")
RATES = Rates(1e9, 1e9, 1e8, 1e8)
SHAPES = st.tuples(*[st.integers(0, 90)] * 3)
STRATEGIES = st.sampled_from(["five-buffers", "c-stationary", "panels", "resident-c"])


def planned(shape, strategy, more, block_shape, *, added=False):
    symmetric = strategy == "resident-c"
    m, n, k = shape[0], shape[0] if symmetric else shape[1], shape[2]
    out = Operand(F4, block_shape=(1, 1) if symmetric else block_shape)
    product = Product(
        m, n, k, Operand(F4), Operand(F4, "F" if symmetric else "C"), out,
        Operand(F4) if added and not symmetric else None,
    )  # fmt: skip
    least = least_memory(product, F4, symmetric=symmetric, strategy=strategy)
    return choose_plan(product, F4, int(least * more), RATES, symmetric=symmetric, strategy=strategy).plan


@settings(max_examples=60, deadline=None)
@given(SHAPES, STRATEGIES, st.floats(1, 20), st.tuples(st.integers(1, 20), st.integers(1, 20)))
def test_tiles_cover_each_element_once_in_whole_blocks(shape, strategy, more, block_shape):
    plan = planned(shape, strategy, more, block_shape)
    product = plan.product
    done = np.zeros((product.m, product.n), int)
    stored = np.zeros((product.m, product.n), int)
    for op in operations(plan):
        if isinstance(op, Multiply):
            done[slice(*op.rows), slice(*op.cols)] += op.inner[1] - op.inner[0]
        elif isinstance(op, Store):
            computed = done.T if op.mirrored else done
            assert (computed[slice(*op.rows), slice(*op.cols)] == product.k).all()
            stored[slice(*op.rows), slice(*op.cols)] += 1
            for (start, end), block, extent in zip(
                (op.rows, op.cols), product.out.block_shape, done.shape, strict=True
            ):
                assert start % block == 0
                assert end % block == 0 or end == extent
    assert (stored == 1).all()


@settings(max_examples=25, deadline=None)
@given(SHAPES, STRATEGIES, st.floats(4, 20), st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_streamed_products_are_products(shape, strategy, more, direct, added, seed):
    plan = planned(shape, strategy, more, (1, 1), added=added)
    product = plan.product
    rng = np.random.default_rng(seed)
    a = rng.integers(-3, 4, (product.m, product.k)).astype(F4)
    b = a.T if plan.symmetric else rng.integers(-3, 4, (product.k, product.n)).astype(F4)
    c = rng.integers(-3, 4, (product.m, product.n)).astype(F4)
    out = np.full((product.m, product.n), np.nan, F4)
    sources = {"a": ArraySource(a), "b": ArraySource(b)} | ({"c": ArraySource(c)} if product.c else {})
    with HostStreams(pinned_arrays=direct, whole=(16, 16, 16)) as device:
        stream_product(
            plan, sources, ArraySink(out), device, alpha=2, beta=-1 if product.c else 0, settings=Settings(32 << 10, 2)
        )
    np.testing.assert_array_equal(out, 2 * (a @ b) - (c if product.c else 0))
