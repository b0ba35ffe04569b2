"""The Hopper kernel for rows that begin anywhere: layouts, offsets, C, edges, every config; nothing else is written."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from device_arrays import STREAM, DeviceMatrix, strides_of
from oracle import assert_product, poisoned, random_matrix
from test_gemm_kernels import multiply

from gemmule.core.dtype import dtype_named
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel

SPEC = next(spec for spec in REGISTRY if spec.name == "h10_any_pitch")
LAYOUTS = list(itertools.product(("row", "col"), repeat=3))
CONFIGS = [pytest.param(config, id=str(config).replace(" ", ",")) for config in SPEC.configs]


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize(
    "shape", [(1, 9, 13), (9, 1, 8), (65, 71, 23), (127, 265, 1001), (1001, 1303, 711), (2049, 519, 64)], ids=str
)
@pytest.mark.parametrize("layout", [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")], ids="-".join)
@pytest.mark.parametrize("config", CONFIGS)
def test_ragged_tiles(config, layout, shape, rng):
    m, n, k = shape
    kind = dtype_named("bfloat16")
    a, b = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n))
    kinds = (*layout, "row")
    assert_product(multiply(SPEC, a, b, poisoned(kind, (m, n)), kinds=kinds, config=config), a, b)


@pytest.mark.parametrize("offset", [0, 1, 6])
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("shape", [(261, 517, 203), (264, 520, 200)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_layouts_offsets_and_addends(config, shape, layout, offset, rng):
    m, n, k = shape
    kind = dtype_named("float16")
    a, b, c = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n)), random_matrix(rng, kind, (m, n))
    got = multiply(
        SPEC, a, b, poisoned(kind, (m, n)), kinds=layout, c=c, alpha=-1.0, beta=0.5, offset=offset, config=config
    )
    assert_product(got, a, b, c, -1.0, 0.5)


@pytest.mark.parametrize("odd", ["mnk", "n", "k", "mn", "mk"])
@pytest.mark.parametrize("layout", [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")], ids="-".join)
def test_single_odd_extents(layout, odd, rng):
    m, n, k = (extent - (name in odd) for name, extent in zip("mnk", (384, 256, 512), strict=True))
    kind = dtype_named("bfloat16")
    a, b = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n))
    assert_product(multiply(SPEC, a, b, poisoned(kind, (m, n)), kinds=(*layout, "row")), a, b)


@pytest.mark.parametrize("batch", [(3,), (2, 4)], ids=str)
def test_batches(batch, rng):
    kind = dtype_named("float16")
    m, n, k = 71, 133, 101
    a, b, c = (random_matrix(rng, kind, (*batch, *shape)) for shape in ((m, k), (k, n), (m, n)))
    got = multiply(SPEC, a, b, poisoned(kind, (*batch, m, n)), c=c, alpha=2.0, beta=1.0, batch=batch)
    assert_product(got, a, b, c, 2.0, 1.0)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_but_the_result_is_written(config, offset, rng):
    """Rows of the result with gaps between them, in memory that is full of a pattern before and after."""
    kind = dtype_named("bfloat16")
    m, n, k, guard = 131, 197, 75, 64
    a, b = random_matrix(rng, kind, (m, k)), random_matrix(rng, kind, (k, n))
    pitch = n + 2
    whole = np.full(2 * guard + m * pitch, 0x5A5A, np.uint16)
    with (
        DeviceMatrix(kind, (m, k), strides_of("row", (), m, k), offset) as da,
        DeviceMatrix(kind, (k, n), strides_of("col", (), k, n), offset) as db,
        DeviceMatrix(kind, (whole.size,), (1,)) as memory,
    ):
        da.put(a), db.put(b), memory.put(whole.view(kind.numpy()))
        with DeviceMatrix(kind, (m, n), (pitch, 1), 0) as described:
            d = described.matrix()
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, d)
        address = memory.address + 2 * (guard + offset)
        pointers = {"a": da.address, "b": db.address, "d": address}
        assert SPEC.why_not(problem, get_device().arch, config) is None
        run_kernel(problem, Choice(SPEC, config), pointers, 0, STREAM)
        after = memory.get().view(np.uint16)
    rows = after[guard + offset : guard + offset + m * pitch].reshape(m, pitch)
    assert_product(rows[:, :n].copy().view(kind.numpy()), a, b)
    np.testing.assert_array_equal(rows[:, n:], 0x5A5A)
    np.testing.assert_array_equal(after[: guard + offset], 0x5A5A)
    np.testing.assert_array_equal(after[guard + offset + m * pitch :], 0x5A5A)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_same_bits_every_time(config, rng):
    kind = dtype_named("bfloat16")
    a, b = random_matrix(rng, kind, (1031, 2047)), random_matrix(rng, kind, (2047, 775))
    kinds = ("row", "col", "row")
    first, *others = (multiply(SPEC, a, b, poisoned(kind, (1031, 775)), kinds=kinds, config=config) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("config", CONFIGS)
def test_small_integers_are_exact(config, rng):
    kind = dtype_named("bfloat16")
    a, b = (rng.integers(-3, 4, (511, 511)).astype(kind.numpy()) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    got = multiply(SPEC, a, b, poisoned(kind, (511, 511)), kinds=("row", "col", "row"), config=config)
    np.testing.assert_array_equal(got.view(np.uint16), exact.astype(kind.numpy()).view(np.uint16))
