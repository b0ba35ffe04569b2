"""float64_gemm on the virtual GPU: every layout and width of copies, bits, banks, instructions, batches, NaNs."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT64
from gemmule.core.spec import Choice
from gemmule.kernels.float64.config import SHAPES
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from gemmule.vgpu.mma.double import fused_multiply_add
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: The config that compiles fastest, with two blocks of rows a warp and slices of one line.
SMALL = dataclasses.replace(SPEC.default, tile_n=32, stages=3)
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


def multiply(a, b, out, c=None, alpha=1, beta=0, config=SMALL, **options):
    problem = problem_of(a, b, out, c, alpha, beta)
    return run_product(Choice(SPEC, config), problem, a, b, out, c, **options)


def in_order(a, b):
    """The product by fused multiply-adds, for k = 0, 1, ... one after the other."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        total = fused_multiply_add(a[:, k, None], b[None, k], total)
    return total


@pytest.mark.parametrize(
    "layout",
    # Both majors of each operand; how they lie together changes no bank.
    [pytest.param(one, marks=[] if one[0] == one[1] else [pytest.mark.slow]) for one in LAYOUTS],
    ids="-".join,
)
def test_whole_tiles_without_bank_conflicts_and_every_bit(layout, rng):
    depth = 4 * SMALL.tile_k
    a, b = random_matrix(rng, FLOAT64, (SMALL.tile_m, depth)), random_matrix(rng, FLOAT64, (depth, SMALL.tile_n))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = poisoned(FLOAT64, (SMALL.tile_m, SMALL.tile_n))
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


#: Layouts, extents, elements that every matrix begins late, and the widths of copies and of what is written then.
WIDTHS = [
    (("col", "col"), (66, 34, 50), 0, ("16", "16", "2")),
    (("row", "row"), (65, 34, 37), 0, ("8", "16", "2")),
    (("col", "row"), (64, 32, 16), 1, ("8", "8", "1")),
]
MORE_WIDTHS = [
    (("row", "row"), (70, 66, 34), 0, ("16", "16", "2")),
    (("row", "col"), (65, 33, 37), 0, ("8", "8", "1")),
    (("col", "row"), (67, 41, 23), 0, ("8", "8", "1")),
]


@pytest.mark.parametrize(
    ("layout", "shape", "offset", "widths"),
    [*WIDTHS, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_WIDTHS)],
    ids=str,
)
def test_layouts_and_widths(layout, shape, offset, widths, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, FLOAT64, extents) for extents in ((m, k), (k, n), (m, n)))
    moved = [laid_out(x, kind, offset) for x, kind in zip((a, b), layout, strict=True)]
    d = laid_out(poisoned(FLOAT64, (m, n)), "row", offset)
    signature = dict(SPEC.signature(problem_of(*moved, d), SMALL))
    assert (signature["a_copies"], signature["b_copies"], signature["d_vector"]) == widths
    assert signature["tiles"] == "ragged"
    np.testing.assert_array_equal(multiply(*moved, d), in_order(a, b))
    assert_product(multiply(*moved, d, laid_out(c, "row", offset), 0.75, -1.5), a, b, c, 0.75, -1.5)


def test_a_column_major_result(rng):
    a, b, c = (random_matrix(rng, FLOAT64, shape) for shape in ((36, 40), (40, 70), (36, 70)))
    d = laid_out(poisoned(FLOAT64, (36, 70)), "col")
    assert_product(multiply(a, b, d, laid_out(c, "col"), 1.0, 1.0), a, b, c, 1.0, 1.0)


@pytest.mark.parametrize("shape", [pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[:-1]], ids=str)
def test_every_instruction_gives_the_same_bits(shape, rng):
    config = dataclasses.replace(SMALL, mma_m=shape[0], mma_k=shape[1])
    a, b = random_matrix(rng, FLOAT64, (64, 48)), random_matrix(rng, FLOAT64, (48, 32))
    np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT64, (64, 32)), config=config), in_order(a, b))


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"tile_k": 32},
        {"warps_m": 1, "stages": 2},
        {"tile_m": 32},
        {"mma_k": 8},
        {"tile_m": 80, "tile_n": 64, "warps_m": 1, "warps_n": 4, "mma_k": 8},
    ],
    ids=str,
)
def test_other_slices_and_warps(values, rng):
    config = dataclasses.replace(SMALL, **values)
    a, b = random_matrix(rng, FLOAT64, (72, 104)), random_matrix(rng, FLOAT64, (104, 40))
    np.testing.assert_array_equal(
        multiply(a, laid_out(b, "col"), poisoned(FLOAT64, (72, 40)), config=config), in_order(a, b)
    )


def parts_in_order(a, b, parts, depth):
    """The product of each part of K in order, and their sum in order; parts are whole slices but for the last."""
    slices = -(-a.shape[1] // depth)
    ends = [min(slices * part // parts * depth, a.shape[1]) for part in range(parts + 1)]
    sums = [in_order(a[:, x:y], b[x:y]) for x, y in itertools.pairwise(ends)]
    return functools.reduce(np.add, sums)


@pytest.mark.parametrize("k", [8, 70], ids=str)
@pytest.mark.parametrize("ctas", [3, *(pytest.param(ctas, marks=pytest.mark.slow) for ctas in (2, 4, 5, 16))])
def test_a_cluster_shares_sums(ctas, k, rng):
    """CTAs whose part of K is empty too, and those of a cluster that do not divide the columns: two of three write."""
    config = dataclasses.replace(SMALL, tile_n=64, cluster_k=ctas)
    a, b, c = (random_matrix(rng, FLOAT64, shape) for shape in ((66, k), (k, 70), (66, 70)))
    expected = parts_in_order(a, b, ctas, config.tile_k)
    np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT64, (66, 70)), config=config), expected)
    got = multiply(a, laid_out(b, "col"), poisoned(FLOAT64, (66, 70)), c, 2.0, -1.0, config=config)
    assert_product(got, a, b, c, 2.0, -1.0)


def test_a_batch_whose_matrices_begin_anywhere(rng):
    a, b = random_matrix(rng, FLOAT64, (3, 40, 20)), random_matrix(rng, FLOAT64, (3, 20, 36))
    # `laid_out` puts 5 elements between matrices.
    moved = [laid_out(x, "row") for x in (a, b)]
    got = multiply(*moved, laid_out(poisoned(FLOAT64, (3, 40, 36)), "row"))
    for entry in range(3):
        np.testing.assert_array_equal(got[entry], in_order(a[entry], b[entry]))


@pytest.mark.parametrize("shape", [(64, 32, 32), (66, 36, 20)], ids=str)
def test_unread_operands_do_not_spread_their_nans(shape, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, FLOAT64, extents) for extents in ((m, k), (k, n), (m, n)))
    nan = np.full((m, n), np.nan)
    np.testing.assert_array_equal(multiply(a, b, nan.copy(), nan, 1.0, 0.0), in_order(a, b))
    np.testing.assert_array_equal(multiply(a * np.nan, b * np.nan, nan.copy(), c, 0.0, 1.0), c)
