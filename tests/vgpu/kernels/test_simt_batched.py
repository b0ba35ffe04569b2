"""simt_batched on the virtual GPU: both types, every layout and stride, banks, bits, parts of K in clusters."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT32, FLOAT64
from gemmule.core.spec import Choice
from gemmule.kernels.simt.batched.config import BatchedConfig
from gemmule.kernels.simt.batched.spec import SPEC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Four threads a matrix, and 8 k at a time.
SMALL = BatchedConfig(tile_m=8, tile_n=8, tile_k=8, matrices=8)
#: Up to 8 rows, and the longest k-tile.
SKINNY = BatchedConfig(tile_m=8, tile_n=64, tile_k=32, matrices=1)
DTYPES = [FLOAT32, FLOAT64]


def multiply(a, b, out, c=None, alpha=1, beta=0, config=SMALL):
    problem = problem_of(a, b, out, c, alpha, beta)
    return run_product(Choice(SPEC, config), problem, a, b, out, c)


def packed(values, kind):
    """The same values in contiguous matrices, whose rows or columns are contiguous."""
    return (
        np.ascontiguousarray(values)
        if kind == "row"
        else np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    )


def in_order(a, b):
    """float32 products by fused multiply-adds, for k = 0, 1, ... one after the other."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for k in range(a.shape[-1]):
        total = (total.astype(np.float64) + a[..., k, None].astype(np.float64) * b[..., None, k, :]).astype(np.float32)
    return total


def conflicts(config, dtype, kinds, rng):
    """Bank conflicts of whole tiles of k-tiles enough for every stage and one more; the product is checked."""
    depth = (config.stages + 1) * config.tile_k * config.cluster_k
    a = random_matrix(rng, dtype, (config.matrices, config.tile_m, depth))
    b = random_matrix(rng, dtype, (config.matrices, depth, config.tile_n))
    moved = [packed(x, kind) for x, kind in zip((a, b), kinds, strict=True)]
    d = poisoned(dtype, (config.matrices, config.tile_m, config.tile_n))
    problem = problem_of(*moved, d)
    signature = SPEC.signature(problem, config)
    assert (dict(signature)["a_copies"], dict(signature)["b_copies"]) == ("16", "16")
    counter = Counter()
    artifact = artifact_for(SPEC, config, signature, virtual_arch())
    arrays = {"a": moved[0], "b": moved[1], "d": d}
    launch(artifact, SPEC.launch(problem, config), arrays, options=Options(checks=True), observers=(counter,))
    if dtype == FLOAT32 and config.cluster_k == 1:
        np.testing.assert_array_equal(d, in_order(a, b))
    assert_product(d, a, b)
    assert counter.counts.total("wavefronts") > 0
    return counter.counts.bank_conflicts


LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


#: Each is compiled anew: both operands of float32 in both orders, and of float64 in the other two pairs.
BANKS = [
    pytest.param(layout, dtype, marks=[] if (layout[0] == layout[1]) == (dtype == FLOAT32) else [pytest.mark.slow],
                 id="-".join((*layout, str(dtype))))
    for layout, dtype in itertools.product(LAYOUTS, DTYPES)
]  # fmt: skip


@pytest.mark.parametrize(("layout", "dtype"), BANKS)
def test_whole_tiles_without_bank_conflicts(layout, dtype, rng):
    assert conflicts(SMALL, dtype, layout, rng) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
def test_every_config_without_bank_conflicts(config, layout, dtype, rng):
    if config.takes(dtype.itemsize) and (dtype == FLOAT32 or config.cluster_k == 1):
        assert conflicts(config, dtype, layout, rng) == 0


#: Layouts of A, B and D, extents, and matrices.
SHAPES = [
    (("row", "row", "row"), (7, 5, 13), 11),
    (("col", "row", "col"), (1, 1, 1), 9),
    (("row", "col", "row"), (9, 20, 3), 2),
    (("reversed", "padded", "padded"), (8, 8, 8), 8),
    (("row", "row", "col"), (8, 16, 24), 1),
]


@pytest.mark.parametrize("dtype", [FLOAT32, pytest.param(FLOAT64, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(("layout", "shape", "batch"), SHAPES, ids=str)
def test_layouts_and_extents(layout, shape, batch, dtype, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, dtype, (batch, *extents)) for extents in ((m, k), (k, n), (m, n)))
    moved = [laid_out(x, kind) for x, kind in zip((a, b, c), layout, strict=True)]
    d = laid_out(poisoned(dtype, (batch, m, n)), layout[2])
    assert_product(multiply(*moved[:2], d), a, b)
    d[...] = np.nan
    assert_product(multiply(*moved[:2], d, moved[2], 0.75, -1.5), a, b, c, 0.75, -1.5)


@pytest.mark.parametrize(
    ("dtype", "layout", "k"),
    [
        pytest.param(FLOAT32, ("row", "col", "row"), 45, marks=pytest.mark.slow),
        (FLOAT64, ("row", "col", "row"), 48),
        pytest.param(FLOAT64, ("col", "row", "row"), 45, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_few_rows_in_one_tile(dtype, layout, k, rng):
    """One matrix a CTA, and so many k at a time that a thread copies some of several lines."""
    m, n = 7, 70
    a, b, c = (random_matrix(rng, dtype, (1, *extents)) for extents in ((m, k), (k, n), (m, n)))
    moved = [laid_out(x, kind) for x, kind in zip((a, b, c), layout, strict=True)]
    d = laid_out(poisoned(dtype, (1, m, n)), layout[2])
    assert SKINNY in SPEC.configs
    assert_product(multiply(*moved[:2], d, config=SKINNY), a, b)
    d[...] = np.nan
    assert_product(multiply(*moved[:2], d, moved[2], 0.75, -1.5, SKINNY), a, b, c, 0.75, -1.5)


def test_strides_without_a_unit_one(rng):
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 14, 18), (5, 18, 22), (5, 14, 22)))
    d = poisoned(FLOAT32, c.shape)
    a, b, c, part = (x[:, ::2, ::2] for x in (a, b, c, d))
    assert_product(multiply(a, b, part, c, 1.0, 1.0), a, b, c, 1.0, 1.0)
    assert np.isnan(d[:, 1::2]).all()
    assert np.isnan(d[:, :, 1::2]).all()


@pytest.mark.parametrize("shared", ["a", "b", "row", "both"])
def test_broadcast_operands(shared, rng):
    a, b = rng.standard_normal((1, 8, 12)).astype(np.float32), rng.standard_normal((1, 12, 4)).astype(np.float32)
    if shared == "row":
        a = a[:, :1]
    a, b = (
        np.broadcast_to(x, (10, *extents))
        if shared in (name, "row", "both")
        else rng.standard_normal((10, *extents)).astype(np.float32)
        for name, x, extents in (("a", a, (8, 12)), ("b", b, (12, 4)))
    )
    assert_product(multiply(a, b, poisoned(FLOAT32, (10, 8, 4))), a, b)


@pytest.mark.parametrize(("k", "alpha"), [(0, 1.0), (20, 0.0)])
@pytest.mark.parametrize("ctas", [1, 2])
def test_nothing_to_multiply(ctas, k, alpha, rng):
    config = dataclasses.replace(SMALL, cluster_k=ctas)
    a, b = np.full((3, 5, k), np.nan, np.float32), np.full((3, k, 8), np.nan, np.float32)
    np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT32, (3, 5, 8)), alpha=alpha, config=config), 0)
    c = random_matrix(rng, FLOAT32, (3, 5, 8))
    np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT32, (3, 5, 8)), c, alpha, -1.0, config), -c)


def test_c_is_not_read_where_beta_is_0_and_nan_stays_in_its_matrix(rng):
    a, b = random_matrix(rng, FLOAT32, (9, 6, 10)), random_matrix(rng, FLOAT32, (9, 10, 7))
    a[4, 3, 5] = np.nan
    d = multiply(a, b, poisoned(FLOAT32, (9, 6, 7)), np.full((9, 6, 7), np.nan, np.float32))
    assert np.isnan(d[4, 3]).all()
    assert np.isnan(d).sum() == 7


@pytest.mark.parametrize("ctas", [2, pytest.param(8, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("depth", [4, 100])
def test_a_cluster_adds_parts_of_k_in_order(ctas, depth, rng):
    config = dataclasses.replace(SMALL, cluster_k=ctas)
    a, b, c = (random_matrix(rng, FLOAT32, (3, *shape)) for shape in ((7, depth), (depth, 12), (7, 12)))
    k_tiles = -(-depth // config.tile_k)
    edges = [k_tiles * cta // ctas * config.tile_k for cta in range(ctas + 1)]
    parts = [in_order(a[..., begin:end], b[:, begin:end]) for begin, end in itertools.pairwise(edges)]
    d = multiply(a, packed(b, "col"), poisoned(FLOAT32, (3, 7, 12)), config=config)
    np.testing.assert_array_equal(d, functools.reduce(np.add, parts))
    assert_product(multiply(a, b, poisoned(FLOAT32, (3, 7, 12)), c, 2.0, 1.0, config), a, b, c, 2.0, 1.0)
