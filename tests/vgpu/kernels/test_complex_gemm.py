"""complex64_gemm, complex128_gemm and the reference kernel's complex products on the virtual GPU, all checks on."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import COMPLEX64, COMPLEX128, FLOAT32
from gemmule.core.problem import mark_own_transpose
from gemmule.core.spec import Choice
from gemmule.kernels.complex.complex64.spec import SPEC as COMPLEX64_GEMM
from gemmule.kernels.complex.complex128.spec import SPEC as COMPLEX128_GEMM
from gemmule.kernels.complex.config import Complex64Config
from gemmule.kernels.complex.syrk import COMPLEX64_SYRK, COMPLEX128_SYRK
from gemmule.kernels.simt.reference.spec import SPEC as REFERENCE
from gemmule.lab.products import gemm_problem, own_product
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from gemmule.vgpu.launcher import launch
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Configs that compile fast, with two blocks of rows a warp.
SMALL = {
    COMPLEX64: (COMPLEX64_GEMM, COMPLEX64_GEMM.configs[-3]),
    COMPLEX128: (COMPLEX128_GEMM, dataclasses.replace(COMPLEX128_GEMM.default, tile_n=32, stages=3)),
}
#: Each is compiled anew, longest for complex64: both operands in both orders, each order of one type.
LAYOUTS = [
    pytest.param(dtype, layout, marks=[] if layout == quick else pytest.mark.slow, id="-".join((str(dtype), *layout)))
    for dtype, quick in ((COMPLEX64, ("row", "row")), (COMPLEX128, ("col", "col")))
    for layout in itertools.product(("row", "col"), repeat=2)
]
#: The signs of one conjugate and of a conjugated result.
CONJUGATES = [
    pytest.param(conj, marks=[] if conj == "b" else pytest.mark.slow, id=conj or "no") for conj in ("", "a", "b", "ab")
]


def multiply(a, b, out, c=None, alpha=1, beta=0, conj="", choice=None):
    spec, config = choice or SMALL[COMPLEX64 if out.dtype == np.complex64 else COMPLEX128]
    problem = problem_of(a, b, out, c, alpha, beta)
    marked = {name: dataclasses.replace(getattr(problem, name), conj=True) for name in conj}
    problem = dataclasses.replace(problem, **marked)
    return run_product(Choice(spec, config), problem, a, b, out, c)


def conjugated(a, b, conj):
    return a.conj() if "a" in conj else a, b.conj() if "b" in conj else b


@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS)
def test_whole_tiles_without_bank_conflicts(dtype, layout, rng):
    spec, config = SMALL[dtype]
    depth = 4 * config.tile_k
    a, b = random_matrix(rng, dtype, (config.tile_m, depth)), random_matrix(rng, dtype, (depth, config.tile_n))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = poisoned(dtype, (config.tile_m, config.tile_n))
    problem = problem_of(*moved, d)
    signature = spec.signature(problem, config)
    assert dict(signature)["tiles"] == "whole"
    counter = Counter()
    arrays = {"a": moved[0], "b": moved[1], "d": d}
    recipe = spec.launch(problem, config)
    artifact = artifact_for(spec, config, signature, virtual_arch())
    launch(artifact, recipe, arrays, options=Options(checks=True), observers=(counter,))
    assert_product(d, a, b)
    assert counter.counts.total("wavefronts") > 0
    assert counter.counts.bank_conflicts == 0


@pytest.mark.parametrize("conj", CONJUGATES)
@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_conjugates_are_read_as_they_lie(dtype, conj, rng):
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((37, 21), (21, 44), (37, 44)))
    moved = laid_out(a, "col"), b
    got = multiply(*moved, poisoned(dtype, (37, 44)), c, 0.5 - 0.75j, 1.25 + 0.5j, conj)
    assert_product(got, *conjugated(a, b, conj), c, 0.5 - 0.75j, 1.25 + 0.5j)


@pytest.mark.parametrize("offset", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("dtype", [COMPLEX64, pytest.param(COMPLEX128, marks=pytest.mark.slow)], ids=str)
def test_a_column_major_result_is_the_product_of_transposes(dtype, offset, rng):
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((36, 40), (40, 70), (36, 70)))
    moved = laid_out(a, "row", offset), laid_out(b, "col", offset)
    d = laid_out(poisoned(dtype, (36, 70)), "col", offset)
    got = multiply(*moved, d, laid_out(c, "col", offset), 1j, 1.0, "b")
    assert_product(got, a, b.conj(), c, 1j, 1.0)


@pytest.mark.parametrize(
    ("dtype", "ctas"),
    [
        pytest.param(COMPLEX64, 2, marks=pytest.mark.slow), pytest.param(COMPLEX128, 2, marks=pytest.mark.slow),
        # More than a warp has columns of blocks: some only add.
        (COMPLEX128, 4),
    ],
    ids=str,
)  # fmt: skip
def test_a_cluster_shares_sums(dtype, ctas, rng):
    spec, config = SMALL[dtype]
    config = dataclasses.replace(config, cluster_k=ctas)
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((66, 70), (70, 40), (66, 40)))
    got = multiply(a, b, poisoned(dtype, (66, 40)), c, 2.0, -1.0, "b", (spec, config))
    assert_product(got, a, b.conj(), c, 2.0, -1.0)


@pytest.mark.parametrize(
    ("shape", "conj"),
    [
        # A tile that all CTAs share; seven tiles; no K, and fewer k-tiles than CTAs.
        ((61, 30, 90), "b"),
        pytest.param((130, 70, 66), "a", marks=pytest.mark.slow),
        pytest.param((130, 70, 0), "", marks=pytest.mark.slow),
        pytest.param((61, 30, 11), "ab", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_persistent_ctas_share_tiles_of_complex128(shape, conj, rng):
    spec, config = SMALL[COMPLEX128]
    config = dataclasses.replace(config, stream_k=1, ctas=1)
    m, n, k = shape
    a, b, c = (random_matrix(rng, COMPLEX128, x) for x in ((m, k), (k, n), (m, n)))
    wanted = conjugated(a, b, conj)
    d = poisoned(COMPLEX128, (m, n))
    assert_product(multiply(a, b, d, c, 0.5 - 0.75j, 1j, conj, (spec, config)), *wanted, c, 0.5 - 0.75j, 1j)
    # Nothing is read where a factor is 0.
    np.testing.assert_array_equal(multiply(a * np.nan, b, d, c, 0.0, 1.0, conj, (spec, config)), c)


@pytest.mark.parametrize(
    "config",
    [
        # Groups of warps, and columns that are held; in a cluster too; rows that are held.
        Complex64Config(tile_m=64, tile_n=64, warps_m=2, warps_n=1, tile_k=16, warps_k=2),
        pytest.param(
            Complex64Config(tile_m=32, tile_n=64, warps_m=1, warps_n=1, tile_k=32, warps_k=4, cluster_k=2),
            marks=pytest.mark.slow,
        ),
        pytest.param(Complex64Config(tile_m=64, tile_n=64, warps_m=2, tile_k=16), marks=pytest.mark.slow),
    ],
    ids=lambda config: f"{config.thread_m}x{config.thread_n}-{config.warps_k}-{config.cluster_k}",
)
def test_thread_tiles_of_complex64(config, rng):
    a, b, c = (random_matrix(rng, COMPLEX64, shape) for shape in ((67, 75), (75, 70), (67, 70)))
    got = multiply(a, b, poisoned(COMPLEX64, (67, 70)), c, 0.5j, -1.0, "a", (COMPLEX64_GEMM, config))
    assert_product(got, a.conj(), b, c, 0.5j, -1.0)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_a_batch_and_no_products(dtype, rng):
    a, b = random_matrix(rng, dtype, (3, 20, 12)), random_matrix(rng, dtype, (3, 12, 18))
    moved = [laid_out(x, "row") for x in (a, b)]
    assert_product(multiply(*moved, laid_out(poisoned(dtype, (3, 20, 18)), "row")), a, b)
    empty = multiply(a[0, :, :0], b[0, :0], poisoned(dtype, (20, 18)))
    assert not empty.any()


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_unread_operands_do_not_spread_their_nans(dtype, rng):
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((20, 12), (12, 18), (20, 18)))
    nan = poisoned(dtype, (20, 18))
    assert_product(multiply(a, b, nan.copy(), nan, 1.0, 0.0), a, b)
    np.testing.assert_array_equal(multiply(a * np.nan, b * np.nan, nan.copy(), c, 0.0, 1.0), c)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("changes", [{}, {"cluster_k": 2}, {"stream_k": 1, "ctas": 1}], ids=str)
@pytest.mark.parametrize("conj", ["", pytest.param("b", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["row", "col"])
def test_products_of_complex128_are_rounded_to_complex64(changes, conj, kind, rng):
    spec, config = SMALL[COMPLEX128]
    config = dataclasses.replace(config, **changes)
    # Both are K-major, as they are without K.
    a, b = random_matrix(rng, COMPLEX128, (66, 70)), laid_out(random_matrix(rng, COMPLEX128, (70, 41)), "col")
    c = random_matrix(rng, COMPLEX64, (66, 41))
    wanted = conjugated(a, b, conj)
    # Lines begin between multiples of 16 bytes.
    d, addend = (laid_out(x, kind, 1) for x in (poisoned(COMPLEX64, (66, 41)), c))
    assert_product(multiply(a, b, d, addend, 0.5 - 2j, 1j, conj, (spec, config)), *wanted, c, 0.5 - 2j, 1j)
    d = laid_out(poisoned(COMPLEX64, (66, 41)), kind, 1)
    assert_product(multiply(a, b, d, None, 1, 0, conj, (spec, config)), *wanted)
    d = laid_out(poisoned(COMPLEX64, (66, 41)), kind, 1)
    empty = multiply(a[:, :0], b[:0], d, choice=(spec, config))
    assert not empty.any()


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_a_real_scalar_keeps_infinities_in_their_part(dtype, rng):
    a, b = random_matrix(rng, dtype, (20, 12)), random_matrix(rng, dtype, (12, 18))
    a[3], b[:, 4] = 0, 1
    a[3, 0] = dtype.max_value
    b[0, 4] = 2
    row = multiply(a, b, poisoned(dtype, (20, 18)))[3]
    assert row[4].real == np.inf
    assert row[4].imag == 0


@pytest.mark.parametrize("conj", [pytest.param("", marks=pytest.mark.slow), "ab"], ids=["no", "ab"])
@pytest.mark.parametrize("dtype", [COMPLEX64, pytest.param(COMPLEX128, marks=pytest.mark.slow)], ids=str)
def test_the_reference_kernel_takes_any_strides_and_real_factors(dtype, conj, rng):
    choice = REFERENCE, REFERENCE.default
    a, b, c = (random_matrix(rng, dtype, shape) for shape in ((2, 37, 21), (2, 21, 44), (2, 37, 44)))
    moved = [laid_out(x, "reversed") for x in (a, b, c)]
    d = laid_out(poisoned(dtype, (2, 37, 44)), "padded")
    got = multiply(moved[0], moved[1], d, moved[2], 0.5j, 1 - 1j, conj, choice)
    assert_product(got, *conjugated(a, b, conj), c, 0.5j, 1 - 1j)
    real = random_matrix(rng, FLOAT32, (37, 21))
    assert_product(
        multiply(real, b[0], poisoned(dtype, (37, 44)), conj=conj, choice=choice), real, *conjugated(a, b[0], conj)[1:]
    )


@pytest.mark.parametrize("adjoint", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [pytest.param(COMPLEX64, marks=pytest.mark.slow), COMPLEX128], ids=str)
def test_a_matrix_times_its_own_adjoint_by_half(dtype, adjoint, rng):
    """Tiles left of the diagonal blocks are written twice; rows end within a tile."""
    spec = COMPLEX64_SYRK if dtype == COMPLEX64 else COMPLEX128_SYRK
    config = min(spec.configs, key=lambda one: one.tile_elements)
    a, d = random_matrix(rng, dtype, (300, 6)), poisoned(dtype, (300, 300))
    problem = problem_of(a, a.T, d, alpha=0.5)
    problem = dataclasses.replace(problem, b=dataclasses.replace(problem.b, conj=adjoint))
    problem = mark_own_transpose(problem, same=True)
    assert problem.own_transpose
    assert spec.why_not(problem, virtual_arch(), config) is None
    large = own_product(gemm_problem(1024, 1024, 8, dtype.name, dtype.name, "nt"))
    assert spec.launch(large, config).grid[0] * config.tile_elements == 10 * 256**2
    run_kernel(problem, Choice(spec, config), {"a": a, "b": a.T, "d": d}, Options(checks=True))
    assert_product(d, a, a.T.conj() if adjoint else a.T, alpha=0.5)


@pytest.mark.slow
def test_files_out_of_core(tmp_path, rng):
    """Several k-tiles of several tiles, by a journaled run."""
    a, b = random_matrix(rng, COMPLEX128, (70, 60)), random_matrix(rng, COMPLEX128, (60, 50))
    for name, x in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", x)
    out = tmp_path / "out.npy"
    gm.outofcore.matmul(
        tmp_path / "a.npy", tmp_path / "b.npy", out, alpha=0.5 - 1j, memory=200_000, executor="vgpu", verify=True
    )
    assert_product(np.load(out), a, b, alpha=0.5 - 1j)
