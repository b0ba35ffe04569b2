"""hopper_gemm_unaligned on the virtual GPU, all checks on: unaligned results, C, layouts, schedules, split-K."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as K_MAJOR
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_unaligned.config import UnalignedGemmConfig
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Turns with the smallest tile, and the smallest that both warpgroups share: what calls take is compiled longer.
TURNS, SHARED = (
    UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8),
    UnalignedGemmConfig(tile_n=64, stages=4, pingpong=0),
)
CONFIGS = [
    TURNS,
    SHARED,
    *(pytest.param(one, marks=pytest.mark.slow) for one in SPEC.configs if not one.pingpong and one.cluster_k == 1),
]
SPLIT = [one for one in SPEC.configs if one.cluster_k > 1]
#: Of them some: CTAs that write 32 columns, 8, and 64, and with cooperative warpgroups 32.
FEW = [
    next(one for one in SPLIT if (one.tile_m, one.tile_n, one.cluster_k) == shape)
    for shape in ((64, 64, 2), (64, 64, 8), (64, 128, 2), (128, 128, 4))
]


def named(config):
    return f"{config.tile_m}x{config.tile_n}x{config.stages}k{config.cluster_k}"


def multiply(a, b, d, c=None, alpha=1, beta=0, config=TURNS):
    problem = problem_of(a, b, d, c, alpha, beta)
    if a.dtype == np.float32:
        problem = dataclasses.replace(problem, precision=Precision.TF32)
    return run_product(Choice(SPEC, config), problem, a, b, d, c)


@pytest.mark.combinations(2)
@pytest.mark.parametrize("offset", [0, 1, 6])
@pytest.mark.parametrize("shape", [(65, 71, 72), (130, 129, 136)], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.tile_m}x{config.tile_n}")
def test_results_that_begin_anywhere(config, shape, offset, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, BFLOAT16, sides) for sides in ((m, k), (k, n), (m, n)))
    columns, c_late = laid_out(b, "col"), laid_out(c, "row", offset)
    d = laid_out(poisoned(BFLOAT16, (m, n)), "row", offset)
    assert_product(multiply(a, columns, d, c_late, 0.5, 2.0, config), a, b, c, 0.5, 2.0)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("layout", [("row", "col"), ("col", "row")], ids="-".join)
@pytest.mark.parametrize(
    "config",
    [
        UnalignedGemmConfig(tile_m=64, tile_n=96, stages=4),
        UnalignedGemmConfig(tile_m=64, tile_n=96, stages=4, cluster_k=4, ctas=4),
        UnalignedGemmConfig(tile_n=160, stages=3, pingpong=0),
    ],
    ids=named,
)
def test_widths_that_are_no_multiple_of_64(config, layout, rng):
    """Lines of a k-tile of less than 128 bytes where B is MN-major; rows of 24 columns of each CTA of a cluster."""
    m, n, k = 136, config.tile_n + (43 if layout[1] == "col" else 48), 72 * config.cluster_k
    a, b, c = (random_matrix(rng, BFLOAT16, sides) for sides in ((m, k), (k, n), (m, n)))
    moved, c_late = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)], laid_out(c, "row", 3)
    d = laid_out(poisoned(BFLOAT16, (m, n)), "row", 5)
    assert_product(multiply(*moved, d, c_late, 0.5, 2.0, config), a, b, c, 0.5, 2.0)


@pytest.mark.parametrize("layout", [("row", "row"), ("col", "col"), ("col", "row")], ids="-".join)
def test_layouts_and_a_result_in_columns(layout, rng):
    a, b = random_matrix(rng, FLOAT16, (72, 64)), random_matrix(rng, FLOAT16, (64, 80))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    for kind in ("padded", "col"):
        d = laid_out(poisoned(FLOAT16, (72, 80)), kind, 1)
        assert_product(multiply(*moved, d), a, b)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "config", [*FEW, *(pytest.param(one, marks=pytest.mark.slow) for one in SPLIT if one not in FEW)], ids=named
)
def test_clusters_split_k(config, offset, rng):
    """One cluster for several tiles; some CTAs' columns lie beyond the last, and k-tiles are shared unevenly."""
    config = dataclasses.replace(config, ctas=config.cluster_size)
    m, n, k = config.tile_m + 2, 201, 64 * config.cluster_k + 72
    a, b, c = (random_matrix(rng, BFLOAT16, sides) for sides in ((m, k), (k, n), (m, n)))
    columns, c_late = laid_out(b, "col"), laid_out(c, "row", offset)
    d = laid_out(poisoned(BFLOAT16, (m, n)), "row", offset)
    assert_product(multiply(a, columns, d, c_late, 0.5, 2.0, config), a, b, c, 0.5, 2.0)
    # Without C it is another kernel, which batches multiply in every layout.
    if offset and config.cluster_k == 2:
        d = laid_out(poisoned(BFLOAT16, (m, n)), "padded", offset)
        assert_product(multiply(a, columns, d, config=config), a, b)


@pytest.mark.parametrize("layout", [("row", "row"), ("col", "col"), ("col", "row"), ("row", "col")], ids="-".join)
def test_clusters_split_k_of_batches_in_every_layout(layout, rng):
    a, b = random_matrix(rng, FLOAT16, (3, 72, 136)), random_matrix(rng, FLOAT16, (3, 136, 80))
    moved = [
        np.stack([x.T for x in y]).transpose(0, 2, 1) if kind == "col" else y
        for y, kind in zip((a, b), layout, strict=True)
    ]
    config = UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8, cluster_k=2)
    d = poisoned(FLOAT16, (3, 72, 83))[..., :80]
    assert_product(multiply(*moved, d, config=config), a, b)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("layout", [("row", "col"), ("col", "row")], ids="-".join)
@pytest.mark.parametrize(
    "cluster", [(2, 1, 1), pytest.param((1, 2, 1), marks=pytest.mark.slow), (2, 2, 2), (1, 4, 2)], ids=str
)
def test_clusters_share_loads(cluster, layout, rng):
    """One cluster for several tiles, of which some lie beyond the last row or column."""
    config = UnalignedGemmConfig(64, 64, 4, 1, *cluster, ctas=math.prod(cluster))
    m, n, k = 136, 201 if layout[1] == "col" else 200, 264
    a, b, c = (random_matrix(rng, BFLOAT16, sides) for sides in ((m, k), (k, n), (m, n)))
    moved, c_late = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)], laid_out(c, "row", 1)
    d = laid_out(poisoned(BFLOAT16, (m, n)), "row", 1)
    assert_product(multiply(*moved, d, c_late, 0.5, 2.0, config), a, b, c, 0.5, 2.0)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    "config", [TURNS, SHARED, UnalignedGemmConfig(tile_m=64, tile_n=64, stages=4, cluster_k=2)], ids=named
)
@pytest.mark.parametrize(("dtype", "out"), [(BFLOAT16, FLOAT32), (FLOAT16, BFLOAT16)], ids=str)
def test_results_of_another_type(dtype, out, config, adds, rng):
    m, n, k = config.tile_m + 2, 73, 136
    a, b, c = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n)), random_matrix(rng, out, (m, n))
    columns, c_late = laid_out(b, "col"), laid_out(c, "row", 1) if adds else None
    d = laid_out(poisoned(out, (m, n)), "row", 3)
    assert_product(multiply(a, columns, d, c_late, 0.5, 2.0 * adds, config), a, b, c, 0.5, 2.0 * adds)


@pytest.mark.parametrize(("k", "cluster_k"), [(1, 2), (64, 2), (128, 4), (448, 8)])
def test_fewer_k_tiles_than_ctas_of_a_cluster_are_refused(k, cluster_k):
    config = UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8, cluster_k=cluster_k)
    a, b, d = (np.zeros(sides, BFLOAT16.numpy()) for sides in ((64, 512), (64, 512), (64, 65)))
    problem = problem_of(a[:, :k], b[:, :k].T[:, :64], d[:, :64])
    assert SPEC.why_not(problem, virtual_arch(), config) == (
        f"K={k} has {-(-k // 64)} k-tiles of 128 bytes, too few to share among {cluster_k} CTAs"
    )
    assert SPEC.why_not(problem, virtual_arch(), TURNS) is None


def test_no_cluster_multiplies_nothing():
    a, b, d = (np.zeros(sides, BFLOAT16.numpy()) for sides in ((64, 8), (64, 8), (64, 65)))
    problem = problem_of(a[:, :0], b[:, :0].T, d[:, :64])
    assert SPEC.refuses(problem, virtual_arch()) == "there is nothing to multiply: an extent, the batch or alpha is 0"


@pytest.mark.parametrize("k", [3, 395])
def test_odd_operands_are_repacked_for_a_cluster(k, rng):
    """A product of few tiles and a long K; a single k-tile is not split."""
    m, n = 65, 67
    a, b, d = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n)), poisoned(BFLOAT16, (m, n))
    columns = laid_out(a, "col")
    problem = problem_of(columns, b, d)
    assert REPACKED.why_not(problem, virtual_arch(), REPACKED.default) is None
    assert (REPACKED.next_kernel(problem, REPACKED.default).config.cluster_k > 1) == (k > 64)
    run_kernel(problem, Choice(REPACKED, REPACKED.default), {"a": columns, "b": b, "d": d}, Options(checks=True))
    assert_product(d, a, b)


def takes_tf32(config):
    x = np.zeros((64, 64), np.float32)
    problem = dataclasses.replace(problem_of(x, x.T, x), precision=Precision.TF32)
    return SPEC.why_not(problem, virtual_arch(), config) is None


#: One tile of each schedule, of 64 and of 128 rows.
TF32_CONFIGS = [
    TURNS,
    SHARED,
    UnalignedGemmConfig(tile_m=64, tile_n=64, stages=8, cluster_k=4),
    *(pytest.param(one, marks=pytest.mark.slow) for one in SPEC.configs if takes_tf32(one)),
]


@pytest.mark.combinations(1)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("config", TF32_CONFIGS, ids=named)
def test_tf32_into_results_that_begin_anywhere(config, offset, rng):
    m, n, k = 130, 71, 100 + 36 * (config.cluster_k - 1)
    a, b, c = (rng.integers(-4, 5, sides).astype(np.float32) for sides in ((m, k), (k, n), (m, n)))
    d = laid_out(poisoned(FLOAT32, (m, n)), "row", offset)
    multiply(a, laid_out(b, "col"), d, laid_out(c, "row", offset), 2, -1, config)
    np.testing.assert_array_equal(d, 2 * (a @ b) - c)


@pytest.mark.parametrize("layout", [("row", "col"), ("col", "col"), ("row", "row"), ("col", "row")], ids="-".join)
@pytest.mark.parametrize("shape", [(67, 65, 131), (130, 71, 3)], ids=str)
def test_tf32_operands_of_any_alignment_are_copied(layout, shape, rng):
    m, n, k = shape
    a, b = (rng.integers(-4, 5, sides).astype(np.float32) for sides in ((m, k), (k, n)))
    d, moved = poisoned(FLOAT32, (m, n)), [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    problem = dataclasses.replace(problem_of(*moved, d, None, 1, 0), precision=Precision.TF32)
    spec = REPACKED if layout == ("row", "col") else K_MAJOR
    assert spec.why_not(problem, virtual_arch(), spec.default) is None
    run_kernel(problem, Choice(spec, spec.default), {"a": moved[0], "b": moved[1], "d": d}, Options(checks=True))
    np.testing.assert_array_equal(d, a @ b)
