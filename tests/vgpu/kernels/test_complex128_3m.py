"""complex128 by three real products on the virtual GPU, all checks on, and what its imaginary parts may lose."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import COMPLEX128, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.complex.complex128_3m.spec import SPEC
from gemmule.kernels.complex.config import Complex128ThreeMConfig
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = Complex128ThreeMConfig(tile_m=32, tile_n=32, stages=3)
#: Two words of fragments a step, warp tiles of an odd number of columns, and blocks of two rows.
WIDE = Complex128ThreeMConfig(tile_m=64, tile_n=48, mma_k=8, stages=3)
SHARED = dataclasses.replace(SMALL, stream_k=1, ctas=1)


def multiply(a, b, out, c=None, alpha=1, beta=0, conj="", config=SMALL):
    problem = problem_of(a, b, out, c, alpha, beta)
    marked = {name: dataclasses.replace(getattr(problem, name), conj=True) for name in conj}
    problem = dataclasses.replace(problem, precision=Precision.THREE_M, **marked)
    return run_product(Choice(SPEC, config), problem, a, b, out, c)


def matrices(rng, *shapes):
    return [random_matrix(rng, COMPLEX128, shape) for shape in shapes]


def conjugated(a, b, conj):
    return a.conj() if "a" in conj else a, b.conj() if "b" in conj else b


@pytest.mark.parametrize("layout", list(itertools.product(("row", "col"), repeat=2)), ids="-".join)
@pytest.mark.parametrize("config", [SMALL, WIDE], ids=["small", "wide"])
def test_whole_tiles_without_bank_conflicts(config, layout, rng):
    depth = 4 * config.tile_k
    a, b = matrices(rng, (config.tile_m, depth), (depth, config.tile_n))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = poisoned(COMPLEX128, (config.tile_m, config.tile_n))
    problem = dataclasses.replace(problem_of(*moved, d), precision=Precision.THREE_M)
    signature = SPEC.signature(problem, config)
    assert dict(signature)["tiles"] == "whole"
    counter, recipe = Counter(), SPEC.launch(problem, config)
    artifact = artifact_for(SPEC, config, signature, virtual_arch())
    arrays = {"a": moved[0], "b": moved[1], "d": d}
    launch(artifact, recipe, arrays, options=Options(checks=True), observers=(counter,))
    assert_product(d, a, b, three_m=True)
    assert counter.counts.total("wavefronts") > 0
    assert counter.counts.bank_conflicts == 0


@pytest.mark.parametrize("conj", ["", "a", "b", "ab"])
@pytest.mark.parametrize("config", [SMALL, pytest.param(WIDE, marks=pytest.mark.slow)], ids=["small", "wide"])
def test_conjugates_are_read_as_they_lie(config, conj, rng):
    a, b, c = matrices(rng, (67, 21), (21, 99), (67, 99))
    got = multiply(laid_out(a, "col"), b, poisoned(COMPLEX128, (67, 99)), c, 0.5 - 0.75j, 1.25 + 0.5j, conj, config)
    assert_product(got, *conjugated(a, b, conj), c, 0.5 - 0.75j, 1.25 + 0.5j, three_m=True)


@pytest.mark.parametrize(
    ("shape", "conj"), [((61, 30, 90), "b"), ((130, 70, 66), "a"), ((130, 70, 0), ""), ((61, 30, 11), "ab")], ids=str
)
def test_persistent_ctas_share_tiles(shape, conj, rng):
    """A tile that all CTAs share; many tiles; no K, and fewer k-tiles than CTAs."""
    m, n, k = shape
    a, b, c = matrices(rng, (m, k), (k, n), (m, n))
    wanted, d = conjugated(a, b, conj), poisoned(COMPLEX128, (m, n))
    got = multiply(a, b, d, c, 0.5 - 0.75j, 1j, conj, SHARED)
    assert_product(got, *wanted, c, 0.5 - 0.75j, 1j, three_m=True)
    # Nothing is read where a factor is 0.
    np.testing.assert_array_equal(multiply(a * np.nan, b, d, c, 0.0, 1.0, conj, SHARED), c)


def test_a_column_major_result_batches_and_no_products(rng):
    a, b = matrices(rng, (3, 20, 12), (3, 12, 18))
    moved = [laid_out(x, "row") for x in (a, b)]
    d = laid_out(poisoned(COMPLEX128, (3, 20, 18)), "col")
    assert_product(multiply(*moved, d), a, b, three_m=True)
    assert not multiply(a[0, :, :0], b[0, :0], poisoned(COMPLEX128, (20, 18))).any()


def test_small_imaginary_parts_lose_their_bits(rng):
    """Within the bound of three products, and beyond that of four, which the default keeps."""
    a, b = (x.real + 2.0**-40 * 1j * x.imag for x in matrices(rng, (32, 40), (40, 32)))
    got = multiply(a, b, poisoned(COMPLEX128, (32, 32)))
    assert_product(got, a, b, three_m=True)
    with pytest.raises(AssertionError, match="times the bound"):
        assert_product(got, a, b)
    assert_product(gm.matmul(a, b, executor="vgpu"), a, b)


def test_an_infinity_makes_nan_of_imaginary_parts(rng):
    """And of no other row."""
    a, b = (np.abs(x.real) + 1j * np.abs(x.imag) for x in matrices(rng, (20, 12), (12, 18)))
    a[3, 2] = np.inf
    got = multiply(a, b, poisoned(COMPLEX128, (20, 18)))
    assert np.isnan(got[3].imag).all()
    assert np.isposinf(got[3].real).all()
    rest = np.arange(20) != 3
    assert_product(got[rest], a[rest], b, three_m=True)
    # One conjugate makes a difference of the sum, and NaN of infinite parts.
    a[3, 2] = 1
    a[5, 1] = np.nan
    assert np.isnan(multiply(a, b, poisoned(COMPLEX128, (20, 18)))[5]).all()


def test_nothing_but_its_name_asks_for_it(rng):
    a, b = matrices(rng, (40, 24), (24, 33))
    assert gm.matmul.plan(a, b, executor="vgpu").kernel != SPEC.name
    problem = problem_of(a, b, poisoned(COMPLEX128, (40, 33)))
    assert "this kernel is for '3m'" in SPEC.why_not(problem, virtual_arch(), SMALL)
    assert_product(gm.matmul(a, b, precision="3m", executor="vgpu"), a, b, three_m=True)
    for wrong in (a.astype(np.complex64), a.real.copy()):
        with pytest.raises(gm.DTypeError, match="complex128 products"):
            gm.matmul(wrong, wrong.T, precision="3m")
