"""Products of operands that begin anywhere, packed first: odd extents, offsets, layouts, C, batches, many calls."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.hopper.gemm_repacked.config import PackingConfig
from gemmule.runtime.device import get_device
from gemmule.runtime.driver import call
from gemmule.runtime.execute import run_kernel
from gemmule.runtime.stopwatch import Graph, new_stream
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_repacked")
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
KIND = dtype_named("bfloat16")


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize(
    "shape", [(1, 9, 13), (9, 1, 8), (65, 71, 23), (127, 265, 1001), (1001, 1303, 711), (2049, 519, 63)], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_odd_extents(layout, shape, rng):
    m, n, k = shape
    a, b = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))
    assert_product(multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=(*layout, "row")), a, b)


@pytest.mark.parametrize("offset", [1, 6])
@pytest.mark.parametrize("shape", [(261, 517, 203), (264, 520, 200)], ids=str)
def test_offsets_and_addends(shape, offset, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n)), random_matrix(rng, KIND, (m, n))
    got = multiply(SPEC, a, b, poisoned(KIND, (m, n)), c=c, alpha=-1.0, beta=0.5, offset=offset)
    assert_product(got, a, b, c, -1.0, 0.5)


@pytest.mark.parametrize("odd", ["mnk", "n", "k", "nk", "mk"])
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_single_odd_extents(layout, odd, rng):
    m, n, k = (extent - (name in odd) for name, extent in zip("mnk", (384, 256, 512), strict=True))
    a, b = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))
    assert_product(multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=(*layout, "row")), a, b)


@pytest.mark.parametrize("kinds", [("reversed", "row"), ("col", "gapped"), ("gapped", "reversed")], ids="-".join)
@pytest.mark.parametrize("shape", [(65, 72, 23), (127, 265, 1001), (512, 640, 384)], ids=str)
@pytest.mark.parametrize("types", [("bfloat16", "bfloat16"), ("int8", "int32")], ids="-".join)
def test_operands_without_contiguous_lines(types, shape, kinds, rng):
    (m, n, k), (kind, out) = shape, map(dtype_named, types)
    a, b = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n))
    assert_product(multiply(SPEC, a, b, poisoned(out, (m, n)), kinds=(*kinds, "row")), a, b)


@pytest.mark.parametrize("kind", ["row", "apart"])
@pytest.mark.parametrize("batch", [(3,), (2, 4)], ids=str)
def test_batches(batch, kind, rng):
    m, n, k = 71, 133, 101
    a, b = random_matrix(rng, KIND, (*batch, m, k)), random_matrix(rng, KIND, (*batch, k, n))
    got = multiply(SPEC, a, b, poisoned(KIND, (*batch, m, n)), kinds=(kind, "apart", "apart"), batch=batch)
    assert_product(got, a, b)


@pytest.mark.parametrize("config", SPEC.configs, ids=lambda config: str(config).replace(" ", ","))
def test_configs_and_calls_one_after_another(config, rng):
    """Every call finds in its workspaces what it packed itself, whatever the one before left there."""
    m, n, k = 515, 389, 1003
    for _ in range(4):
        a, b = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))
        assert_product(multiply(SPEC, a, b, poisoned(KIND, (m, n)), config=config), a, b)


@pytest.mark.parametrize("shape", [(515, 389, 1003), (389, 515, 1003), (2049, 263, 513)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_the_smaller_operand_alone_is_packed(layout, shape, rng):
    m, n, k = shape
    a, b = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))
    got = multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=(*layout, "row"), config=PackingConfig(packs=1))
    assert_product(got, a, b)


def test_many_calls_without_waiting(rng):
    """Launches may overlap; workspaces that follow each other in the stream are the same memory."""
    m, n, k = 389, 261, 515
    arrays = [(random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))) for _ in range(8)]
    held = []
    for a, b in arrays:
        da, db, dd = (
            DeviceMatrix(KIND, x.shape, strides_of("row", (), *x.shape)).put(x) for x in (a, b, poisoned(KIND, (m, n)))
        )
        held.append((da, db, dd))
    for da, db, dd in held:
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, dd.matrix())
        run_kernel(problem, Choice(SPEC, SPEC.default), {"a": da.address, "b": db.address, "d": dd.address}, 0, STREAM)
    for (a, b), (da, db, dd) in zip(arrays, held, strict=True):
        assert_product(dd.get(), a, b)
        for matrix in (da, db, dd):
            matrix.buffer.free()


def test_a_captured_call_computes_what_is_there_when_it_is_replayed(rng):
    m, n, k = 261, 133, 515
    first, second = ((random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))) for _ in range(2))
    out = poisoned(KIND, (m, n))
    with ExitStack() as stack:
        da, db, dd = (
            stack.enter_context(DeviceMatrix(KIND, x.shape, strides_of("row", (), *x.shape))).put(x)
            for x in (*first, out)
        )
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, dd.matrix())
        pointers = {"a": da.address, "b": db.address, "d": dd.address}
        stream = stack.enter_context(new_stream(0))
        run_kernel(problem, Choice(SPEC, SPEC.default), pointers, 0, stream)
        graph = Graph(lambda: run_kernel(problem, Choice(SPEC, SPEC.default), pointers, 0, stream), 0, stream)
        stack.callback(graph.close)
        for a, b in (second, first):
            da.put(a), db.put(b), dd.put(out)
            graph()
            call("cuStreamSynchronize", stream)
            assert_product(dd.get(), a, b)


def test_small_integers_are_exact(rng):
    a, b = (rng.integers(-3, 4, (511, 511)).astype(KIND.numpy()) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    got = multiply(SPEC, a, b, poisoned(KIND, (511, 511)))
    np.testing.assert_array_equal(got.view(np.uint16), exact.astype(KIND.numpy()).view(np.uint16))
