"""float64_gemm by TMA on the virtual GPU: layouts, ragged tiles, stream-K, bits, banks, batches, C."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT64
from gemmule.core.spec import Choice
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from gemmule.vgpu.mma.double import fused_multiply_add
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: A small tile of as many warps, and three CTAs that share tiles.
SMALL = Float64Config(warps_n=4, stages=3, stream_k=1, tma=1, ctas=3)
SLOW = [pytest.mark.slow]
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


def in_order(a, b):
    """The product by fused multiply-adds, for k = 0, 1, ... one after the other."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        total = fused_multiply_add(a[:, k, None], b[None, k], total)
    return total


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_whole_tiles_without_bank_conflicts_and_every_bit(layout, rng):
    a, b = random_matrix(rng, FLOAT64, (128, 64)), random_matrix(rng, FLOAT64, (64, 192))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = poisoned(FLOAT64, (128, 192))
    problem = problem_of(*moved, d)
    signature = SPEC.signature(problem, SMALL)
    assert dict(signature)["tiles"] == "whole"
    counter = Counter()
    artifact = artifact_for(SPEC, SMALL, signature, virtual_arch())
    arrays = {"a": moved[0], "b": moved[1], "d": d}
    launch(artifact, SPEC.launch(problem, SMALL), arrays, options=Options(checks=True), observers=(counter,))
    np.testing.assert_array_equal(d, in_order(a, b))
    assert counter.counts.total("wavefronts") > 0
    assert counter.counts.bank_conflicts == 0


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_ragged_tiles_that_ctas_share(layout, rng):
    a, b = random_matrix(rng, FLOAT64, (130, 86)), random_matrix(rng, FLOAT64, (86, 150))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    c, d = random_matrix(rng, FLOAT64, (130, 150)), poisoned(FLOAT64, (130, 150))
    problem = problem_of(*moved, d, c, 0.5, -2)
    config = dataclasses.replace(SMALL, ctas=4)
    run_product(Choice(SPEC, config), problem, *moved, d, c)
    assert_product(d, a, b, c, 0.5, -2)


def behind_odd_lines(values):
    """The same values in lines of an even number of elements, as TMA needs, the last of which may be NaN."""
    rows, cols = values.shape
    lines = np.full((rows, cols + cols % 2), np.nan)
    lines[:, :cols] = values
    return lines[:, :cols]


@pytest.mark.parametrize("mma_k", [16, pytest.param(8, marks=SLOW), pytest.param(4, marks=SLOW)])
@pytest.mark.parametrize("shape", [(130, 63, 1), (70, 151, 15), (1, 65, 33), (65, 1, 64)], ids=str)
def test_results_of_odd_lines_and_a_short_k(shape, mma_k, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT64, (m, k)), random_matrix(rng, FLOAT64, (k, n))
    moved = behind_odd_lines(a), behind_odd_lines(b.T).T
    c, d = (laid_out(x, "row", 1) for x in (random_matrix(rng, FLOAT64, (m, n)), poisoned(FLOAT64, (m, n))))
    config = dataclasses.replace(SMALL, mma_k=mma_k)
    run_product(Choice(SPEC, config), problem_of(*moved, d, c, 2, 3), *moved, d, c)
    assert_product(d, a, b, c, 2, 3)


@pytest.mark.parametrize("one", ["", "a", "b"])
@pytest.mark.parametrize("out", ["row", "col"])
def test_batches(one, out, rng):
    a, b = (
        random_matrix(rng, FLOAT64, (1 if x == one else 3, *shape))
        for x, shape in zip("ab", ((70, 50), (50, 66)), strict=True)
    )
    a, b = np.broadcast_to(a, (3, 70, 50)), np.broadcast_to(b, (3, 50, 66))
    d = laid_out(poisoned(FLOAT64, (3, 70, 66)), out)
    run_product(Choice(SPEC, SMALL), problem_of(a, b, d), a, b, d)
    assert_product(d, a, b)


@pytest.mark.parametrize("ctas", [1, 2, pytest.param(7, marks=SLOW), 40])
def test_the_same_bits_whoever_is_first(ctas, rng):
    """Also where CTAs run one after the other."""
    config = dataclasses.replace(SMALL, ctas=ctas)
    a, b = random_matrix(rng, FLOAT64, (66, 500)), random_matrix(rng, FLOAT64, (500, 64))
    found = []
    for run in ({}, {"batch_lanes": 1}):
        d = poisoned(FLOAT64, (66, 64))
        found.append(run_product(Choice(SPEC, config), problem_of(a, b, d), a, b, d, **run))
        assert_product(d, a, b)
    np.testing.assert_array_equal(*found)
