"""mma_sync_batched on the virtual GPU, all checks on: ragged tiles and K, strides, vectors, C, batches, rounding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from gemmule.core.spec import Choice
from gemmule.kernels.mma_sync.batched.config import BatchedMmaConfig
from gemmule.kernels.mma_sync.batched.spec import SPEC, loads_of
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

NARROW = BatchedMmaConfig(16, 8, 1, warps=2)
WIDE = BatchedMmaConfig(32, 32, 2, warps=2)
CONFIGS = [NARROW, BatchedMmaConfig(16, 16, 2, warps=3), WIDE]
LAYOUTS = list(itertools.product(("row", "col", "reversed"), ("row", "padded", "col")))


def product(rng, shape, config, dtype=BFLOAT16, layout=("row", "row"), factors=(1, 0), d_type=None):
    *batch, m, n, k = shape
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d_type = d_type or dtype
    d = laid_out(poisoned(d_type, (*batch, m, n)), "row")
    c = laid_out(random_matrix(rng, d_type, (*batch, m, n)), "reversed") if factors[1] else None
    run_product(Choice(SPEC, config), problem_of(*moved, d, c, *factors), *moved, d, c)
    assert_product(d, a, b, c, *factors)


@pytest.mark.parametrize("k", [0, 1, 3, 8, 15, 16, 17, 31, 33, 64, 77])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_k_has_its_step(config, k, rng):
    product(rng, (3, 19, 21, k), config, factors=(0.5, -2))


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_strides_of_any_kind(config, layout, rng):
    product(rng, (2, 21, 35, 19), config, FLOAT16, layout)


def packed(values, kind):
    """The same values without gaps, matrices one after another."""
    return values if kind == "row" else np.ascontiguousarray(np.swapaxes(values, -1, -2)).swapaxes(-1, -2)


@pytest.mark.parametrize("layout", list(itertools.product(("row", "col"), repeat=3)), ids="-".join)
@pytest.mark.parametrize("size", [6, 20, 32])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_vectors_along_any_mode(config, size, layout, rng):
    a, b, c = (random_matrix(rng, BFLOAT16, (3, size, size)) for _ in range(3))
    moved = [packed(x, kind) for x, kind in zip((a, b), layout, strict=False)]
    d = packed(poisoned(BFLOAT16, (3, size, size)), layout[2])
    problem = problem_of(*moved, d, c, 0.5, -2)
    (_, a_bytes), (_, b_bytes), vector = loads_of(problem)
    assert (a_bytes, b_bytes, vector) == {6: (4, 4, 2), 20: (8, 8, 4), 32: (8, 8, 8)}[size]
    run_product(Choice(SPEC, config), problem, *moved, d, c)
    assert_product(d, a, b, c, 0.5, -2)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", [(7, 4, 4, 4), (5, 1, 24, 8), (5, 24, 1, 33), (1, 40, 72, 16), (65, 8, 8, 8)])
def test_batches_fill_no_cta(config, shape, rng):
    product(rng, shape, config, d_type=FLOAT32)


@pytest.mark.parametrize("config", [NARROW, WIDE], ids=str)
def test_a_batch_of_one_matrix(config, rng):
    a, b = random_matrix(rng, FLOAT16, (1, 5, 24)), random_matrix(rng, FLOAT16, (3, 24, 12))
    a = np.broadcast_to(a, (3, 5, 24))
    d = poisoned(FLOAT16, (3, 5, 12))
    run_product(Choice(SPEC, config), problem_of(a, b, d), a, b, d)
    assert_product(d, a, b)


@pytest.mark.parametrize("config", [NARROW, WIDE], ids=str)
def test_alpha_of_0_reads_neither_factor(config, rng):
    a, b, c = (random_matrix(rng, BFLOAT16, shape) for shape in ((3, 50), (50, 6), (3, 6)))
    a[:], b[:] = np.nan, np.inf
    d = poisoned(BFLOAT16, (3, 6))
    run_product(Choice(SPEC, config), problem_of(a, b, d, c, 0, 2), a, b, d, c)
    np.testing.assert_array_equal(d, 2 * c)
