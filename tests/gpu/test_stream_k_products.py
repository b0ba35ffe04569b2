"""Split-K of hopper_gemm and stream-K of float64 on the GPU: the same bits, replayed graphs, two streams at once."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC as FLOAT64
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.runtime.device import get_device
from gemmule.runtime.driver import call
from gemmule.runtime.execute import run_kernel
from gemmule.runtime.memory import DeviceBuffer
from gemmule.runtime.stopwatch import Graph, new_stream
from support.gpu.device_arrays import DeviceMatrix, strides_of
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

KIND = dtype_named("bfloat16")
SPLIT = HopperGemmConfig(cluster_m=1, split_k=1)
CONFIGS = [
    pytest.param(dataclasses.replace(SPLIT, **fields), id=",".join(f"{name}={x}" for name, x in fields.items()) or "-")
    for fields in (
        {},
        {"tile_n": 96, "stages": 6, "cluster_m": 4, "cluster_n": 2},
        {"tile_m": 64, "tile_n": 96, "stages": 8, "pingpong": 1, "cluster_n": 4, "swap_ab": 1},
    )
]


OF_FLOAT64 = [
    pytest.param(Float64Config(stream_k=1, **fields), id=f"float64-{fields}")
    for fields in ({}, {"ctas": 3}, {"tile_m": 128, "tile_n": 128, "warps_n": 4, "mma_k": 8})
] + [
    # Ten waves of clusters or more, some of which wait for some of waves before.
    pytest.param(Float64Config(mma_k=8, cluster_k=parts, stream_k=1, ctas=2640), id=f"float64-clusters-{parts}")
    for parts in (2, 6)
]


def kernel_of(config):
    """Return the kernel of a config, and a type that it multiplies."""
    return (FLOAT64, dtype_named("float64")) if isinstance(config, Float64Config) else (SPEC, KIND)


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (65, 72, 1000), (512, 576, 7168), (936, 7256, 1032), (2049, 1304, 520)], ids=str
)
@pytest.mark.parametrize("config", CONFIGS)
def test_ragged_tiles(config, shape, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n)), random_matrix(rng, KIND, (m, n))
    assert_product(multiply(SPEC, a, b, poisoned(KIND, (m, n)), config=config), a, b)
    got = multiply(SPEC, a, b, poisoned(KIND, (m, n)), c=c, alpha=0.75, beta=-1.5, config=config)
    assert_product(got, a, b, c, 0.75, -1.5)


@pytest.mark.parametrize("config", CONFIGS)
def test_batches(config, rng):
    m, n, k, batch = 136, 264, 200, (2, 3)
    a, b = random_matrix(rng, KIND, (*batch, m, k)), random_matrix(rng, KIND, (*batch, k, n))
    kinds = ("whole", "whole", "whole")
    got = multiply(SPEC, a, b, poisoned(KIND, (*batch, m, n)), kinds=kinds, batch=batch, config=config)
    assert_product(got, a, b)


@pytest.mark.parametrize("config", CONFIGS + OF_FLOAT64)
def test_the_same_bits_every_time(config, rng):
    spec, kind = kernel_of(config)
    a, b = random_matrix(rng, kind, (1032, 2048)), random_matrix(rng, kind, (2048, 1304))
    first, *others = (multiply(spec, a, b, poisoned(kind, (1032, 1304)), config=config) for _ in range(20))
    assert_product(first, a, b)
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint8), other.view(np.uint8))


class OnTheGpu:
    """A product in device memory, computed again and again."""

    def __init__(self, stack, rng, config, shape=(936, 1304, 2056)):
        m, n, k = shape
        spec, kind = kernel_of(config)
        self.choice = Choice(spec, config)
        self.a, self.b, self.empty = (
            random_matrix(rng, kind, (m, k)),
            random_matrix(rng, kind, (k, n)),
            poisoned(kind, (m, n)),
        )
        self.held = [
            stack.enter_context(DeviceMatrix(kind, x.shape, strides_of("row", (), *x.shape))).put(x)
            for x in (self.a, self.b, self.empty)
        ]
        da, db, dd = self.held
        self.problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, dd.matrix())
        self.pointers = {"a": da.address, "b": db.address, "d": dd.address}

    def queue(self, stream):
        run_kernel(self.problem, self.choice, self.pointers, 0, stream)

    def check(self):
        assert_product(self.held[2].get(), self.a, self.b)
        self.held[2].put(self.empty)


@pytest.mark.parametrize("config", CONFIGS + OF_FLOAT64)
def test_a_graph_is_replayed(config, rng):
    with ExitStack() as stack:
        product, stream = OnTheGpu(stack, rng, config), stack.enter_context(new_stream(0))
        product.queue(stream)
        call("cuStreamSynchronize", stream)
        product.check()
        graph = Graph(lambda: [product.queue(stream) for _ in range(3)], 0, stream)
        stack.callback(graph.close)
        for _ in range(5):
            graph()
            call("cuStreamSynchronize", stream)
            product.check()


@pytest.mark.parametrize("config", CONFIGS + OF_FLOAT64)
def test_two_streams_at_once(config, rng):
    with ExitStack() as stack:
        products = [OnTheGpu(stack, rng, config) for _ in range(2)]
        streams = [stack.enter_context(new_stream(0)) for _ in products]
        for _ in range(10):
            for product, stream in zip(products, streams, strict=True):
                product.queue(stream)
        for product, stream in zip(products, streams, strict=True):
            call("cuStreamSynchronize", stream)
            product.check()


@pytest.mark.parametrize("config", CONFIGS + OF_FLOAT64)
def test_other_work_had_the_memory(config, rng):
    """The pool gives memory as it was left: ones, and random bits."""
    with ExitStack() as stack:
        product, stream = OnTheGpu(stack, rng, config), stack.enter_context(new_stream(0))
        nbytes = sum(one.nbytes for one in product.choice.spec.launch(product.problem, config).workspaces)
        for left in (np.full(nbytes, 0xFF, np.uint8), rng.integers(0, 256, nbytes, np.uint8)):
            with DeviceBuffer(nbytes, 0, stream) as buffer:
                buffer.upload(left)
            product.queue(stream)
            call("cuStreamSynchronize", stream)
            product.check()
