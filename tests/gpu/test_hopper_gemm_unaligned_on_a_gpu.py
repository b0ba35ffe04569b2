"""The Hopper kernel whose result may lie anywhere: layouts, offsets, C, edges, every config; no other writes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.gpu.kernel_products import multiply
from support.oracle import assert_product, poisoned, random_matrix

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_unaligned")
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
CONFIGS = [pytest.param(config, id=str(config).replace(" ", ",")) for config in SPEC.configs]
KIND = dtype_named("bfloat16")


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("shape", [(1, 9, 16), (65, 71, 24), (127, 265, 1000), (1001, 1303, 712)], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_ragged_tiles(config, shape, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n)), random_matrix(rng, KIND, (m, n))
    kinds = ("whole", "whole", "row")
    assert_product(multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=kinds, config=config), a, b)
    got = multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=kinds, c=c, alpha=0.75, beta=-1.5, config=config)
    assert_product(got, a, b, c, 0.75, -1.5)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("out", ["padded", "row", "col"])
def test_layouts(out, layout, rng):
    m, n, k = 264, 520, 200
    a, b = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))
    got = multiply(SPEC, a, b, poisoned(KIND, (m, n)), kinds=(*layout, out), alpha=-1.0)
    assert_product(got, a, b, alpha=-1.0)


@pytest.mark.parametrize("batch", [(3,), (2, 4)], ids=str)
def test_batches(batch, rng):
    m, n, k = 71, 133, 101
    a, b = random_matrix(rng, KIND, (*batch, m, k)), random_matrix(rng, KIND, (*batch, k, n))
    kinds = ("whole", "whole", "apart")
    got = multiply(SPEC, a, b, poisoned(KIND, (*batch, m, n)), kinds=kinds, batch=batch)
    assert_product(got, a, b)


@pytest.mark.parametrize("offset", range(0, 8, 3))
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_but_the_result_is_written(config, offset, rng):
    """Rows of the result with gaps between them, in memory that is full of a pattern before and after."""
    m, n, k, guard = 131, 197, 520, 64
    a, b = random_matrix(rng, KIND, (m, k)), random_matrix(rng, KIND, (k, n))
    pitch = n + 2
    with (
        DeviceMatrix(KIND, (m, k), strides_of("whole", (), m, k)) as da,
        DeviceMatrix(KIND, (k, n), strides_of("whole", (), k, n)) as db,
        DeviceMatrix(KIND, (2 * guard + m * pitch,), (1,)) as memory,
        DeviceMatrix(KIND, (m, n), (pitch, 1), offset) as described,
    ):
        pattern = np.full(2 * guard + m * pitch, 0x5A5A, np.uint16)
        da.put(a), db.put(b), memory.put(pattern.view(KIND.numpy()))
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, described.matrix())
        pointers = {"a": da.address, "b": db.address, "d": memory.address + 2 * (guard + offset)}
        assert SPEC.why_not(problem, get_device().arch, config) is None
        run_kernel(problem, Choice(SPEC, config), pointers, 0, STREAM)
        after = memory.get().view(np.uint16)
    begin, end = guard + offset, guard + offset + m * pitch
    rows = after[begin:end].reshape(m, pitch)
    assert_product(rows[:, :n].copy().view(KIND.numpy()), a, b)
    np.testing.assert_array_equal(rows[:, n:], 0x5A5A)
    np.testing.assert_array_equal(after[:begin], 0x5A5A)
    np.testing.assert_array_equal(after[end:], 0x5A5A)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_same_bits_every_time(config, rng):
    a, b = random_matrix(rng, KIND, (1031, 2048)), random_matrix(rng, KIND, (2048, 775))
    kinds = ("whole", "whole", "row")
    first, *others = (multiply(SPEC, a, b, poisoned(KIND, (1031, 775)), kinds=kinds, config=config) for _ in range(4))
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint16), other.view(np.uint16))
