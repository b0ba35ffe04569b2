"""hopper_gemm_unaligned_a on the virtual GPU, all checks on: lines of A that begin anywhere, as they lie."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.core.dtype import BFLOAT16, FLOAT16
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm_repacked import smaller_operand
from gemmule.kernels.hopper.gemm_repacked.config import PackingConfig
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC as REPACKED
from gemmule.kernels.hopper.gemm_unaligned_a.config import UnalignedAConfig
from gemmule.kernels.hopper.gemm_unaligned_a.spec import SPEC
from gemmule.kernels.hopper.next_kernel import NextProduct
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: The smallest tiles: of turns, of both warpgroups, and of one CTA's cluster that shares A's classes, or B.
TURNS, SHARED = UnalignedAConfig(tile_n=64, stages=4), UnalignedAConfig(tile_n=64, stages=4, pingpong=0)
CLUSTERS = (
    UnalignedAConfig(tile_n=64, stages=4, ctas=2, cluster_n=2),
    UnalignedAConfig(tile_n=64, stages=4, ctas=2, cluster_m=2, pingpong=0),
)
#: Clusters that split K.
SPLITS = (
    UnalignedAConfig(tile_n=64, stages=4, pingpong=0, cluster_k=4),
    UnalignedAConfig(tile_n=96, stages=3, pingpong=0, cluster_k=3),
)


def shown(config):
    return str(config).replace(" ", ",")


def spread(values, ld):
    """Return the values in rows of `ld` elements, with NaN between them."""
    rows = np.full((values.shape[0], ld), np.nan, values.dtype)
    rows[:, : values.shape[1]] = values
    return rows[:, : values.shape[1]]


def multiply(config, a, b, c=None, ld=None, b_rows=False):
    """Multiply with a K-major A of leading dimension `ld`, with swap_ab as the transpose of the second operand."""
    (m, k), n = a.shape, b.shape[1]
    wide = -(-(n if b_rows else k) // 8) * 8
    given = [spread(a, ld or k), spread(b, wide) if b_rows else spread(b.T, wide).T]
    exact = (a, b)
    if config.swap_ab:
        given, exact = [x.T for x in reversed(given)], (b.T, a.T)
    d = laid_out(
        poisoned(BFLOAT16 if a.dtype == BFLOAT16.numpy() else FLOAT16, (n, m) if config.swap_ab else (m, n)), "row", 1
    )
    scale = (1.0, 0.0) if c is None else (0.5, 2.0)
    late = None if c is None else laid_out(c, "row", 3)
    problem = problem_of(*given, d, late, *scale)
    run_product(Choice(SPEC, config), problem, *given, d, late)
    assert_product(d, *exact, c, *scale) if c is not None else assert_product(d, *exact)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("config", [TURNS, SHARED], ids=shown)
@pytest.mark.parametrize("k", [3, 8, 57, 64, 65, 127, 130, 132, 133, 134, 135])
def test_every_shift_and_every_end_of_k(k, config, swap, rng):
    m, n = 130 + k % 5, 70
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    multiply(dataclasses.replace(config, swap_ab=swap), a, b, ld=k + 8 if k % 2 else k + 3)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("config", [TURNS, SHARED, UnalignedAConfig(stages=2, tile_n=192, pingpong=0)], ids=shown)
def test_c_and_several_tiles(config, swap, rng):
    m, n, k = 261, config.tile_n + 9, 141
    a, b = random_matrix(rng, FLOAT16, (m, k)), random_matrix(rng, FLOAT16, (k, n))
    c = random_matrix(rng, FLOAT16, (n, m) if swap else (m, n))
    multiply(dataclasses.replace(config, swap_ab=swap), a, b, c, b_rows=True)


@pytest.mark.parametrize("config", CLUSTERS, ids=shown)
def test_clusters_share_classes(config, rng):
    a, b = random_matrix(rng, BFLOAT16, (261, 195)), random_matrix(rng, BFLOAT16, (195, 140))
    multiply(config, a, b)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("config", SPLITS, ids=shown)
@pytest.mark.parametrize("k", [195, 249, 250, 256, 257, 263, 320, 385])
def test_clusters_split_k_major_lines(k, config, swap, rng):
    m, n = 130 + k % 5, 70
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    multiply(dataclasses.replace(config, swap_ab=swap), a, b, ld=k + 8 if k % 2 else k + 3)


@pytest.mark.parametrize("swap", [0, 1])
def test_clusters_split_k_beside_c(swap, rng):
    config, k = dataclasses.replace(SPLITS[0], swap_ab=swap), 261
    a, b = random_matrix(rng, FLOAT16, (135, k)), random_matrix(rng, FLOAT16, (k, 139))
    c = random_matrix(rng, FLOAT16, (139, 135) if swap else (135, 139))
    multiply(config, a, b, c, b_rows=True)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("layout", [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")], ids="-".join)
@pytest.mark.parametrize("shape", [(135, 71, 131), (71, 135, 131), (131, 129, 65), (65, 203, 9)], ids=str)
def test_the_smaller_operand_is_packed_and_the_larger_one_is_not(shape, layout, rng):
    m, n, k = shape
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    moved, d = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)], poisoned(BFLOAT16, (m, n))
    problem, choice = problem_of(*moved, d), Choice(REPACKED, PackingConfig(packs=1))
    assert REPACKED.why_not(problem, virtual_arch(), choice.config) is None
    (pack, product), _ = choice.launches(problem)
    assert pack.launch.params[0].operand == ("b" if m >= n else "a")
    assert product.spec is SPEC
    run_kernel(problem, choice, {"a": moved[0], "b": moved[1], "d": d}, Options(checks=True))
    assert_product(d, a, b)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("config", SPLITS, ids=shown)
@pytest.mark.parametrize("layout", [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")], ids="-".join)
@pytest.mark.parametrize("shape", [(135, 71, 257), (71, 135, 451)], ids=str)
def test_clusters_split_k_of_every_layout(shape, layout, config, rng, monkeypatch):
    m, n, k = shape
    swap = dataclasses.replace(config, swap_ab=m < n)
    spec = dataclasses.replace(SPEC, configs=(swap,))
    monkeypatch.setattr(smaller_operand, "_PRODUCT", NextProduct(smaller_operand._repacked, (spec,)))
    a, b = random_matrix(rng, BFLOAT16, (m, k)), random_matrix(rng, BFLOAT16, (k, n))
    moved, d = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)], poisoned(BFLOAT16, (m, n))
    problem, choice = problem_of(*moved, d), Choice(REPACKED, PackingConfig(packs=1))
    (_, product), _ = choice.launches(problem)
    assert product.config == swap
    run_kernel(problem, choice, {"a": moved[0], "b": moved[1], "d": d}, Options(checks=True))
    assert_product(d, a, b)
