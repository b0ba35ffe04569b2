"""complex128_gemm by TMA on the virtual GPU: layouts, banks, ragged tiles, stream-K, conjugates, batches, a short K."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import COMPLEX64, COMPLEX128
from gemmule.core.spec import Choice
from gemmule.kernels.complex.complex128.spec import SPEC
from gemmule.kernels.complex.config import Complex128Config
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: A small tile of as many warps, and three CTAs that share tiles.
SMALL = Complex128Config(warps_m=4, mma_k=16, stages=3, stream_k=1, tma=1, ctas=3)
SLOW = [pytest.mark.slow]
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
ALPHA, BETA = 0.5 - 0.75j, 1j


def multiplied(config, a, b, d, c=None, conj=""):
    problem = problem_of(a, b, d, c, ALPHA, BETA if c is not None else 0)
    marked = {name: dataclasses.replace(getattr(problem, name), conj=True) for name in conj}
    run_product(Choice(SPEC, config), dataclasses.replace(problem, **marked), a, b, d, c)
    assert_product(d, a.conj() if "a" in conj else a, b.conj() if "b" in conj else b, c, ALPHA, BETA)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_whole_tiles_without_bank_conflicts(layout, rng):
    a, b = random_matrix(rng, COMPLEX128, (128, 32)), random_matrix(rng, COMPLEX128, (32, 64))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = poisoned(COMPLEX128, (128, 64))
    problem = problem_of(*moved, d)
    signature = SPEC.signature(problem, SMALL)
    assert dict(signature)["tiles"] == "whole"
    counter = Counter()
    artifact = artifact_for(SPEC, SMALL, signature, virtual_arch())
    arrays = {"a": moved[0], "b": moved[1], "d": d}
    launch(artifact, SPEC.launch(problem, SMALL), arrays, options=Options(checks=True), observers=(counter,))
    assert_product(d, a, b)
    assert counter.counts.total("wavefronts") > 0
    assert counter.counts.bank_conflicts == 0


@pytest.mark.parametrize(
    ("conj", "layout", "mma_k"),
    [
        ("a", ("row", "col"), 16),
        pytest.param("b", ("col", "row"), 8, marks=SLOW),
        pytest.param("ab", ("row", "row"), 4, marks=SLOW),
        pytest.param("", ("col", "col"), 16, marks=SLOW),
    ],
)
def test_ragged_tiles_that_ctas_share(conj, layout, mma_k, rng):
    a, b, c = (random_matrix(rng, COMPLEX128, shape) for shape in ((70, 45), (45, 77), (70, 77)))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    multiplied(dataclasses.replace(SMALL, mma_k=mma_k, ctas=4), *moved, poisoned(COMPLEX128, (70, 77)), c, conj)


@pytest.mark.parametrize("shape", [(66, 9, 1), pytest.param((1, 65, 13), marks=SLOW)], ids=str)
def test_a_short_k_and_results_by_columns(shape, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, COMPLEX128, x) for x in ((m, k), (k, n), (m, n)))
    multiplied(SMALL, a, b, laid_out(poisoned(COMPLEX128, (m, n)), "col"), laid_out(c, "col"))


@pytest.mark.parametrize("one", ["a", pytest.param("b", marks=SLOW)])
def test_batches(one, rng):
    a, b = (
        random_matrix(rng, COMPLEX128, shape if name == one else (3, *shape))
        for name, shape in (("a", (40, 22)), ("b", (22, 36)))
    )
    d = poisoned(COMPLEX128, (3, 40, 36))
    problem = problem_of(np.broadcast_to(a, (3, 40, 22)), np.broadcast_to(b, (3, 22, 36)), d)
    run_product(Choice(SPEC, SMALL), problem, a, b, d)
    assert_product(d, a, b)


def test_a_narrow_result(rng):
    a, b = random_matrix(rng, COMPLEX128, (40, 20)), random_matrix(rng, COMPLEX128, (20, 30))
    d = poisoned(COMPLEX64, (40, 30))
    run_product(Choice(SPEC, SMALL), problem_of(a, b, d), a, b, d)
    np.testing.assert_allclose(d, a @ b, rtol=0, atol=2e-6 * np.abs(a @ b).max())


def test_no_k_is_of_other_configs(rng):
    a, b = random_matrix(rng, COMPLEX128, (40, 0)), random_matrix(rng, COMPLEX128, (0, 30))
    problem = problem_of(a, b, poisoned(COMPLEX128, (40, 30)))
    assert SPEC.why_not(problem, virtual_arch(), SMALL) is not None
    assert SPEC.why_not(problem, virtual_arch(), SPEC.default) is None
