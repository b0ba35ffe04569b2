"""mma_sync_small on the virtual GPU: every layout and copy, short and long K, clusters, C, epilogues, banks."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.spec import Choice
from gemmule.kernels.mma_sync.config import MmaSyncConfig
from gemmule.kernels.mma_sync.small.config import MOST_REGISTERS, SmallMmaConfig
from gemmule.kernels.mma_sync.small.spec import SPEC
from gemmule.kernels.mma_sync.spec import SPEC as MMA_SYNC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = SPEC.default
SPLIT = next(one for one in SPEC.configs if one.cluster_k == 4)
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


def multiply(a, b, out, c=None, alpha=1, beta=0, config=SMALL):
    problem = problem_of(a, b, out, c, alpha, beta)
    if a.dtype == np.float32:
        problem = dataclasses.replace(problem, precision=Precision.TF32)
    return run_product(Choice(SPEC, config), problem, a, b, out, c)


def matrices(rng, dtype, shape, layout, offset=0):
    m, n, k = shape
    pair = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n))
    return [laid_out(x, kind, offset) for x, kind in zip(pair, layout, strict=True)]


def test_whole_tiles_without_bank_conflicts(rng):
    for layout in LAYOUTS:
        # Lines of one element more than a tile has begin anywhere.
        a = random_matrix(rng, FLOAT16, (SMALL.tile_m, 2 * SMALL.depth(FLOAT16)))
        b = random_matrix(rng, FLOAT16, (2 * SMALL.depth(FLOAT16), SMALL.tile_n))
        moved = [laid_out(x, kind, 1) for x, kind in zip((a, b), layout, strict=True)]
        d = poisoned(FLOAT16, (SMALL.tile_m, SMALL.tile_n))
        problem = problem_of(*moved, d)
        signature = SPEC.signature(problem, SMALL)
        assert (dict(signature)["a_copies"], dict(signature)["b_copies"]) == ("2", "2")
        counter = Counter()
        artifact = artifact_for(SPEC, SMALL, signature, virtual_arch())
        arrays = {"a": moved[0], "b": moved[1], "d": d}
        launch(artifact, SPEC.launch(problem, SMALL), arrays, options=Options(checks=True), observers=(counter,))
        assert_product(d, a, b)
        assert counter.counts.total("wavefronts") > 0
        assert counter.counts.bank_conflicts == 0


#: Extents: a single element, K within one k-tile, two, the first stages and one more, and many more; ragged tiles.
SHAPES = [(1, 1, 1), (33, 35, 71), (65, 31, 129), (31, 67, 333)]


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_layouts_and_extents(layout, rng):
    for shape in SHAPES:
        a, b = matrices(rng, FLOAT16, shape, layout)
        c = random_matrix(rng, FLOAT16, shape[:2])
        assert_product(multiply(a, b, poisoned(FLOAT16, shape[:2])), a, b)
        assert_product(multiply(a, b, poisoned(FLOAT16, shape[:2]), c, 0.75, -1.5), a, b, c, 0.75, -1.5)


#: Types of A and of D, layout, extents, elements that matrices begin late, and the widths of copies and writes then.
WIDTHS = [
    (BFLOAT16, BFLOAT16, ("row", "row"), (40, 72, 72), 0, ("16", "16", "2")),
    (FLOAT16, FLOAT32, ("col", "row"), (34, 36, 67), 0, ("4", "8", "2")),
    (BFLOAT16, FLOAT32, ("row", "col"), (35, 37, 68), 0, ("8", "8", "1")),
    (FLOAT16, FLOAT16, ("col", "col"), (40, 38, 72), 1, ("2", "2", "1")),
    (BFLOAT16, BFLOAT16, ("col", "row"), (33, 72, 70), 0, ("2", "16", "2")),
]


@pytest.mark.parametrize(("dtype", "out", "layout", "shape", "offset", "widths"), WIDTHS, ids=str)
def test_widths_of_copies(dtype, out, layout, shape, offset, widths, rng):
    a, b = matrices(rng, dtype, shape, layout, offset)
    d = laid_out(poisoned(out, shape[:2]), "row", offset)
    types = dict(SPEC.signature(problem_of(a, b, d), SMALL))
    assert (types["a_copies"], types["b_copies"], types["d_vector"]) == widths
    assert_product(multiply(a, b, d), a, b)


#: Of a cluster most CTAs have no k-tile, all have one, and some have more.
@pytest.mark.parametrize("k", [3, 4 * 64 - 1, 6 * 64 + 1])
def test_parts_of_k_in_clusters(k, rng):
    a, b = matrices(rng, FLOAT16, (35, 37, k), ("row", "row"))
    c = random_matrix(rng, FLOAT16, (35, 37))
    first = multiply(a, b, poisoned(FLOAT16, (35, 37)), c, 2, -1, SPLIT)
    assert_product(first, a, b, c, 2, -1)
    np.testing.assert_array_equal(first, multiply(a, b, poisoned(FLOAT16, (35, 37)), c, 2, -1, SPLIT))


def to_tf32(x):
    """Round to 11 significand bits, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize(
    "layout",
    [pytest.param(one, marks=[] if one[0] != one[1] else [pytest.mark.slow]) for one in LAYOUTS],
    ids="-".join,
)
def test_tf32(layout, rng):
    for m, n, k in [*SHAPES, (36, 68, 72)]:
        a, b = (to_tf32(x) for x in matrices(rng, FLOAT32, (m, n, k), ("row", "row")))
        moved = [laid_out(x, kind, 0) for x, kind in zip((a, b), layout, strict=True)]
        c = random_matrix(rng, FLOAT32, (m, n))
        assert_product(multiply(*moved, poisoned(FLOAT32, (m, n)), c, 0.75, -1.5), a, b, c, 0.75, -1.5)


def test_tf32_rounds_to_nearest(rng):
    a, b = matrices(rng, FLOAT32, (33, 35, 71), ("row", "col"))
    assert (a != to_tf32(np.ascontiguousarray(a))).any()
    rounded = [to_tf32(np.ascontiguousarray(x)) for x in (a, b)]
    assert_product(multiply(a, b, poisoned(FLOAT32, (33, 35))), *rounded)


#: Of a cluster most CTAs have no k-tile, and some have more than a round.
@pytest.mark.parametrize("k", [3, 19 * 32 + 1])
def test_tf32_in_clusters(k, rng):
    a, b = (to_tf32(x) for x in matrices(rng, FLOAT32, (35, 37, k), ("row", "row")))
    assert_product(multiply(a, b, poisoned(FLOAT32, (35, 37)), config=SPLIT), a, b)


@pytest.mark.slow
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_every_config(config, layout, rng):
    # A second round, with fewer k-tiles than the first.
    by_element = config.registers((config.tile_m, config.tile_n)) <= MOST_REGISTERS
    dtype = BFLOAT16 if by_element else FLOAT32
    k = config.depth(dtype) * (config.k_tiles * config.cluster_k + 1) + 1
    a, b = (to_tf32(x) if dtype == FLOAT32 else x for x in matrices(rng, dtype, (69, 135, k), ("row", "row")))
    moved = [laid_out(x, kind, 0) for x, kind in zip((a, b), layout, strict=True)]
    assert_product(multiply(*moved, poisoned(dtype, (69, 135)), config=config), a, b)


def test_results_in_columns_and_batches(rng):
    a = random_matrix(rng, FLOAT16, (3, 33, 35))
    b = random_matrix(rng, FLOAT16, (3, 35, 31))
    d = laid_out(poisoned(FLOAT16, (3, 33, 31)), "col")
    assert_product(multiply(laid_out(a, "row"), laid_out(b, "row"), d), a, b)


@pytest.mark.parametrize("config", [SMALL, SPLIT], ids=str)
def test_nothing_is_multiplied_without_k_or_alpha(config, rng):
    c = random_matrix(rng, FLOAT16, (33, 35))
    none = np.zeros((33, 0), np.float16), np.zeros((0, 35), np.float16)
    np.testing.assert_array_equal(multiply(*none, poisoned(FLOAT16, (33, 35)), config=config), 0)
    poison = [laid_out(poisoned(FLOAT16, x), "row") for x in ((33, 71), (71, 35))]
    found = multiply(*poison, poisoned(FLOAT16, (33, 35)), c, 0, 2, config)
    np.testing.assert_array_equal(found, 2 * c)


def test_nan_beyond_the_edges_is_not_read(rng):
    room = poisoned(FLOAT16, (40, 100))
    a, b = room[3:36, 5:76], np.asarray(random_matrix(rng, FLOAT16, (71, 33)))
    a[...] = random_matrix(rng, FLOAT16, a.shape)
    assert_product(multiply(a, b, poisoned(FLOAT16, (33, 33))), a, b)


def test_a_warp_does_a_third_of_what_h01s_does(rng):
    def instructions_of_a_warp(spec, config):
        a, b = matrices(rng, FLOAT16, (65, 67, 71), ("row", "row"))
        problem = problem_of(a, b, d := poisoned(FLOAT16, (65, 67)))
        counter, recipe = Counter(), spec.launch(problem, config)
        artifact = artifact_for(spec, config, spec.signature(problem, config), virtual_arch())
        launch(artifact, recipe, {"a": a, "b": b, "d": d}, options=Options(), observers=(counter,))
        return counter.counts.total("warps") / (math.prod(recipe.grid) * recipe.block[0] / 32)

    h01 = MmaSyncConfig(tile_m=64, tile_n=64, stages=4)
    assert instructions_of_a_warp(SPEC, SMALL) < instructions_of_a_warp(MMA_SYNC, h01) / 3


def test_what_it_refuses():
    whole = np.zeros((8, 8), np.float16)
    plain = problem_of(whole, whole, whole)
    deep, odd = next(one for one in SPEC.configs if one.k_tiles == 8), np.zeros((9, 9), np.float16)
    assert "elements and accumulators" in SPEC.why_not(problem_of(odd, odd, odd), virtual_arch(), deep)
    assert "precision='tf32'" in SPEC.why_not(problem_of(*[whole.astype(np.float32)] * 3), virtual_arch(), SMALL)
    assert "strides" in SPEC.why_not(
        problem_of(np.zeros((16, 16), np.float16)[::2, ::2], whole, whole), virtual_arch(), SMALL
    )
    assert SPEC.why_not(plain, virtual_arch(), SMALL) is None
    for wrong in ({"tile_m": 48}, {"warps_m": 3}, {"warps_k": 4}, {"cluster_k": 16}):
        with pytest.raises(ArgumentError):
            dataclasses.replace(SmallMmaConfig(), **wrong)
