"""Properties of streamed products, for any shape and any budget."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmule.core.errors import MemoryLimitError
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.tiles.memory_budget import GivenBytes
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.outofcore.tiles.search import least_memory, plan_product
from support.outofcore.tile_products import multiply, plan_tiles

EXTENT = st.integers(0, 150)
BLOCK = st.sampled_from([1, 1, 7, 32, 200])
ORDER = st.sampled_from("CF")
DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i4"])


def tile_bytes(m: int, n: int, k: int) -> int:
    return 8 * m * n + 100


@st.composite
def products(draw):
    operands = [Operand(np.dtype(draw(DTYPES)), draw(ORDER)) for _ in range(3)]
    added = draw(st.none() | st.builds(Operand, DTYPES.map(np.dtype), ORDER))
    block_shape = draw(st.tuples(BLOCK, BLOCK))
    out = Operand(operands[2].dtype, block_shape=block_shape)
    return Product(draw(EXTENT), draw(EXTENT), draw(EXTENT), operands[0], operands[1], out, added)


@settings(deadline=None, max_examples=80)
@given(products(), st.integers(0, 200_000))
def test_tiles_cover_every_element_once_within_the_budget(product, extra):
    budget = least_memory(product, tile_bytes) + extra
    plan = plan_product(product, budget, tile_bytes)
    assert plan.memory_bytes <= budget
    for tile, extent, block in zip(
        (plan.tile_m, plan.tile_n), (product.m, product.n), product.out.block_shape, strict=True
    ):
        assert tile % block == 0 or tile == max(extent, 1)
    covered = np.zeros((product.m, product.n), int)
    for i, j in plan.order():
        rows, cols = plan.rows(i), plan.cols(j)
        assert rows.stop - rows.start <= plan.tile_m
        assert cols.stop - cols.start <= plan.tile_n
        covered[rows, cols] += 1
    assert (covered == 1).all()
    assert plan.bytes_read(lambda rows, cols: True) == plan.bytes_written(lambda rows, cols: True) == 0
    depth = np.zeros(product.k, int)
    for s in range(plan.grid[2]):
        depth[plan.inner(s)] += 1
    assert (depth == 1).all()


@settings(deadline=None, max_examples=60)
@given(
    EXTENT, EXTENT, EXTENT, ORDER, ORDER, st.integers(0, 60_000), st.integers(-3, 3), st.sampled_from([0, 2]),
    st.sampled_from(["i1", "i4", "u8", "f4"]),
)  # fmt: skip
def test_streamed_equals_in_memory(m, n, k, a_order, b_order, extra, alpha, beta, dtype):
    rng = np.random.default_rng(m + n + k)
    # Integers this small are exact in float32, too.
    a, b, c = (rng.integers(0, 4, shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
    out_dtype = np.dtype("i4") if dtype == "i1" else np.dtype(dtype)
    out = np.full((m, n), 77, out_dtype)
    a_source, b_source = ArraySource(np.asarray(a, order=a_order)), ArraySource(np.asarray(b, order=b_order))
    executor = HostTileExecutor()
    options = {"alpha": alpha, "beta": beta, "c": ArraySource(c)}
    try:
        plan_tiles(a_source, b_source, (m, n), out_dtype, executor, memory=GivenBytes(1), **options)
        budget = 1
    except MemoryLimitError as error:
        budget = int(str(error).split("at least ")[1].split()[0])
    budget += extra
    plan = plan_tiles(a_source, b_source, (m, n), out_dtype, executor, memory=budget, **options)
    report = multiply(a_source, b_source, ArraySink(out), executor, memory=budget, **options)
    expected = alpha * (a.astype(object) @ b.astype(object)) + beta * c.astype(object) if k else beta * c.astype(object)
    modulus = 2 ** (8 * out_dtype.itemsize)
    if out_dtype.kind == "u":
        expected = expected % modulus
    np.testing.assert_array_equal(out, expected.astype(out_dtype))
    assert report.bytes_read == plan.bytes_read()
    assert report.bytes_written == plan.bytes_written() == out.nbytes


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400), st.integers(0, 1 << 20))
def test_floats_stay_within_the_bound(m, n, k, extra):
    rng = np.random.default_rng(m * n * k)
    a, b = rng.standard_normal((m, k), "f4"), rng.standard_normal((k, n), "f4")
    out = np.empty((m, n), "f4")
    multiply(ArraySource(a), ArraySource(b), ArraySink(out), HostTileExecutor(), memory=(11 << 20) + extra)
    wide_a, wide_b = a.astype("f8"), b.astype("f8")
    bound = (k + 4) * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b))
    assert (np.abs(out - wide_a @ wide_b) <= bound).all()


class ExactSum:
    """A sum in float32 that takes exactly what its executor says."""

    def __init__(self, m, n):
        self.total, self.scratch = np.zeros((m, n), "f4"), np.empty((m, n), "f4")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        del self.total, self.scratch

    def add(self, a, b):
        np.matmul(a, b, out=self.scratch)
        self.total += self.scratch

    def finish(self, out, alpha=1, beta=0, c=None):
        np.multiply(self.total, alpha, out=out)
        if beta:
            np.multiply(c, beta, out=self.scratch)
            out += self.scratch


class ExactExecutor:
    name = "exact"

    def describe(self):
        return "NumPy"

    def tile_bytes(self, a_dtype, b_dtype, out_dtype, m, n, k):
        return 8 * m * n

    def tile_sum(self, m, n, a_dtype, b_dtype, out_dtype, into=None):
        return ExactSum(m, n)


@settings(deadline=None, max_examples=6)
@given(
    st.integers(300, 900), st.integers(300, 900), st.integers(100, 900), st.integers(1 << 20, 4 << 20), st.booleans()
)
def test_the_memory_that_is_taken_is_the_memory_that_was_planned(m, n, k, budget, added):
    a, b, c = np.ones((m, k), "f4"), np.ones((k, n), "f4"), ArraySource(np.ones((m, n), "f4"))
    out = np.empty((m, n), "f4")
    scalars = {"beta": 2, "c": c} if added else {}
    tracemalloc.start()
    report = multiply(ArraySource(a), ArraySource(b), ArraySink(out), ExactExecutor(), memory=budget, **scalars)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (out == k + 2 * added).all()
    assert report.memory_bytes <= budget
    assert peak <= report.memory_bytes + (128 << 10)
