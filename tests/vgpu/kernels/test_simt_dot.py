"""simt_dot on the virtual GPU, all checks on: parts of K, ragged tiles, strides, C, batches, conjugates, rounding."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64
from gemmule.core.spec import Choice
from gemmule.kernels.simt.dot.config import DotConfig
from gemmule.kernels.simt.dot.spec import SPEC
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Two warps, alone and in clusters, whose rounds of loads are short.
ALONE = DotConfig(4, 4, 2, threads=64)
CLUSTER = DotConfig(2, 3, 2, threads=64, cluster_k=3)
LAYOUTS = list(itertools.product(("row", "col", "reversed"), ("row", "padded", "col")))


def product(rng, shape, config, dtype, layout=("row", "row"), factors=(1, 0), batch=()):
    m, n, k = shape
    a, b = random_matrix(rng, dtype, (*batch, m, k)), random_matrix(rng, dtype, (*batch, k, n))
    moved = [laid_out(x, kind, 1) for x, kind in zip((a, b), layout, strict=True)]
    d = laid_out(poisoned(dtype, (*batch, m, n)), "padded", 1)
    c = laid_out(random_matrix(rng, dtype, (*batch, m, n)), "reversed") if factors[1] else None
    run_product(Choice(SPEC, config), problem_of(*moved, d, c, *factors), *moved, d, c)
    assert_product(d, a, b, c, *factors)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 31, 32, 33, 127, 128, 129, 257, 515])
@pytest.mark.parametrize("config", [ALONE, CLUSTER], ids=str)
def test_every_k_has_its_part(config, k, rng):
    product(rng, (5, 7, k), config, FLOAT32, factors=(0.5, -2))


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_strides_of_any_kind(layout, rng):
    product(rng, (5, 7, 133), CLUSTER, FLOAT64, layout)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT64, COMPLEX64, COMPLEX128], ids=str)
@pytest.mark.parametrize("config", [ALONE, CLUSTER], ids=str)
def test_types(config, dtype, rng):
    factors = (0.5 - 1j, 2j) if dtype in (COMPLEX64, COMPLEX128) else (0.5, -2)
    product(rng, (5, 3, 205), config, dtype, ("col", "row"), factors, (2,))


@pytest.mark.parametrize("config", [ALONE, CLUSTER], ids=str)
def test_a_batch_of_one_matrix(config, rng):
    a, b = random_matrix(rng, FLOAT32, (1, 5, 77)), random_matrix(rng, FLOAT32, (3, 77, 2))
    a = np.broadcast_to(a, (3, 5, 77))
    d = poisoned(FLOAT32, (3, 5, 2))
    run_product(Choice(SPEC, config), problem_of(a, b, d), a, b, d)
    assert_product(d, a, b)


@pytest.mark.parametrize("config", [ALONE, CLUSTER], ids=str)
@pytest.mark.parametrize("dtype", [FLOAT32, COMPLEX64], ids=str)
def test_alpha_of_0_reads_neither_factor_and_beta_of_0_no_c(dtype, config, rng):
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((3, 50), (50, 6), (3, 6)))
    a[:], b[:] = np.nan, np.inf
    d = poisoned(dtype, (3, 6))
    run_product(Choice(SPEC, config), problem_of(a, b, d, c, 0, 2), a, b, d, c)
    np.testing.assert_array_equal(d, 2 * c)


@pytest.mark.parametrize("conj", ["a", "b", "ab"])
def test_conjugates_are_read_as_they_lie(conj, rng):
    a, b = random_matrix(rng, COMPLEX64, (3, 133)), random_matrix(rng, COMPLEX64, (133, 4))
    d = poisoned(COMPLEX64, (3, 4))
    problem = problem_of(a, b, d, None, 1 - 2j)
    problem = dataclasses.replace(
        problem, **{name: dataclasses.replace(getattr(problem, name), conj=True) for name in conj}
    )
    run_product(Choice(SPEC, CLUSTER), problem, a, b, d)
    assert_product(d, a.conj() if "a" in conj else a, b.conj() if "b" in conj else b, None, 1 - 2j)
