"""simt_gemm on the virtual GPU: every layout and width of copies, bits, banks, clusters, batches, NaNs, epilogues."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import FLOAT32, dtype_named
from gemmule.core.errors import ArgumentError
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem
from support.epilogue_cases import CASES
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.epilogues import finish
from support.vgpu.kernel_products import laid_out, problem_of
from support.vgpu.kernels_left import leave_kernels
from support.vgpu.simt_products import counted_product, counts_of, in_groups, in_order
from support.vgpu.simt_products import multiply as multiply_by

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

SMALL = SimtConfig(tile_m=32, tile_n=32, warps_m=2, warps_n=1)
#: Rows of A in two panels, of which a thread tile has both, and two octets of k.
DEEP = SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=1, warps_n=2, stages=2)
#: Four groups of warps share a tile along K.
GROUPS = SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, stages=2, warps_k=4)
#: The same in a tall warp tile, whose lanes are 8 x 4.
TALL = SimtConfig(tile_m=64, tile_n=32, tile_k=32, warps_m=1, warps_n=1, stages=3, warps_k=4)
#: One K-major operand passes through registers, two through slots: two groups of warps, in tiles of two panels.
VECTORS = SimtConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=1, stages=3, warps_k=2)
#: Two groups of warps in the largest tiles, three stages.
WIDE = SimtConfig(tile_m=64, tile_n=128, tile_k=32, warps_m=2, warps_n=2, stages=3, warps_k=2)
HIGH = SimtConfig(tile_m=128, tile_n=64, tile_k=32, warps_m=4, warps_n=1, stages=3, warps_k=2)
#: K-major operands pass through registers in small tiles.
EARLY = SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, stages=3, warps_k=4, wide_copies=1)
#: Three panels and six warps, two of each panel, in two groups.
PANELS = SimtConfig(tile_m=96, tile_n=96, tile_k=32, warps_m=3, warps_n=1, stages=3, warps_k=2)
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))


def multiply(*arrays, config=SMALL, **options):
    return multiply_by(*arrays, config=config, **options)


@pytest.mark.combinations(1)
@pytest.mark.parametrize(
    "config",
    [SMALL, DEEP, *(pytest.param(one, marks=pytest.mark.slow) for one in (GROUPS, TALL, VECTORS, EARLY, PANELS))],
    ids=str,
)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_whole_tiles_without_bank_conflicts(layout, config, rng):
    shape = config.tile_m, config.tile_n, 5 * config.tile_k
    whole = gemm_problem(*shape, "float32", "float32", "".join("n" if kind == "row" else "t" for kind in layout))
    assert dict(SPEC.signature(whole, config))["tiles"] == "whole"
    counts = counted_product(config, shape, layout, rng)
    assert counts.total("wavefronts") > 0
    assert counts.bank_conflicts == 0


@pytest.mark.parametrize("config", [GROUPS, TALL, dataclasses.replace(DEEP, cluster_k=2)], ids=str)
def test_interleaved_lanes_read_vectors_in_two_wavefronts(config, rng):
    assert config.interleaved(transposes=False, slots=False)
    a, b = random_matrix(rng, FLOAT32, (config.tile_m, 128)), random_matrix(rng, FLOAT32, (128, config.tile_n))
    a, d = laid_out(a, "col"), poisoned(FLOAT32, (config.tile_m, config.tile_n))
    counts = counts_of(config, a, b, d)
    assert_product(d, a, b)
    reads = [row for row in counts.instructions if "ld.shared.v4" in row.text and row.requests]
    # Whole warps read the partial sums of groups of warps, 512 bytes.
    partials = config.tile_elements * config.warps_k // 128 if config.warps_k > 1 else 0
    assert sum(row.requests for row in reads) > partials
    assert sum(row.wavefronts - 2 * row.requests for row in reads) == 2 * partials
    assert counts.bank_conflicts == 0


#: Layouts, extents, elements that every matrix begins late, and the widths of copies and of what is written then.
WIDTHS = [
    (("col", "row"), (68, 36, 50), 0, ("16", "16", "4")),
    (("row", "row"), (65, 34, 37), 0, ("4", "4", "1")),
    (("col", "col"), (32, 32, 16), 1, ("4", "4", "1")),
    (("row", "col"), (1, 1, 77), 0, ("4", "4", "1")),
]


@pytest.mark.parametrize(("layout", "shape", "offset", "widths"), WIDTHS, ids=str)
def test_layouts_and_widths(layout, shape, offset, widths, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, FLOAT32, extents) for extents in ((m, k), (k, n), (m, n)))
    moved = [laid_out(x, kind, offset) for x, kind in zip((a, b), layout, strict=True)]
    d = laid_out(poisoned(FLOAT32, (m, n)), "row", offset)
    signature = dict(SPEC.signature(problem_of(*moved, d), SMALL))
    assert (signature["a_copies"], signature["b_copies"], signature["d_vector"]) == widths
    np.testing.assert_array_equal(multiply(*moved, d), in_order(a, b))
    assert_product(multiply(*moved, d, laid_out(c, "row", offset), 0.75, -1.5), a, b, c, 0.75, -1.5)


#: Extents that end within a panel and within a k-tile, and fewer k than a stage or than are in flight.
ENDS = [(68, 36, 52), *(pytest.param(one, marks=pytest.mark.slow) for one in ((36, 132, 4), (100, 68, 100)))]


@pytest.mark.combinations(1)
@pytest.mark.parametrize("shape", ENDS, ids=str)
@pytest.mark.parametrize(
    "config", [DEEP, TALL, EARLY, *(pytest.param(one, marks=pytest.mark.slow) for one in (VECTORS,))], ids=str
)
@pytest.mark.parametrize("layout", [("row", "col"), ("row", "row"), ("col", "col")], ids="-".join)
def test_vectors_along_k_end_where_the_matrices_do(layout, config, shape, rng):
    assert counted_product(config, shape, layout, rng).bank_conflicts == 0


def test_wide_copies_of_a_cluster(rng):
    config = dataclasses.replace(EARLY, stages=4, cluster_k=2)
    assert config in SPEC.configs
    # Several k-tiles, one, and none in the first CTA.
    for depth, middle in ((164, 96), (36, 32), (20, 0)):
        a, b = random_matrix(rng, FLOAT32, (36, depth)), random_matrix(rng, FLOAT32, (depth, 40))
        parts = [in_groups(a[:, some], b[some], config) for some in (slice(middle), slice(middle, None))]
        for moved in ((a, laid_out(b, "col")), (a, b), (laid_out(a, "col"), laid_out(b, "col"))):
            d = multiply(*moved, poisoned(FLOAT32, (36, 40)), config=config)
            np.testing.assert_array_equal(d, parts[0] + parts[1])


@pytest.mark.parametrize("tile", [(64, 64), (64, 32)], ids=str)
@pytest.mark.parametrize("layout", [("row", "col"), pytest.param(("row", "row"), marks=pytest.mark.slow)], ids="-".join)
def test_wide_copies_of_more_vectors_than_steps_and_of_sides_that_differ(layout, tile, rng):
    config = dataclasses.replace(EARLY, tile_m=tile[0], tile_n=tile[1], stages=4)
    assert counted_product(config, (68, 36, 164), layout, rng).bank_conflicts == 0


def test_wide_copies_are_of_k_major_float32_and_never_of_one_octet():
    narrow = dataclasses.replace(EARLY, wide_copies=0)
    for one in ((True, True), (True, False), (False, False)):
        assert EARLY.by_vectors(one) == one
        assert narrow.by_vectors(one) == (False, False)
    with pytest.raises(ArgumentError, match="wide_copies is for float32, and for a tile_k of more than 8"):
        dataclasses.replace(SMALL, wide_copies=1)


def test_k_major_operands_are_loaded_by_vectors_where_it_pays_and_each_is_inside():
    def copies(problem, config):
        types = dict(SPEC.signature(problem, config))
        return types["a_copies"], types["b_copies"]

    many = gemm_problem(1024, 1024, 1020, "float32", "float32", "nt")
    assert copies(many, DEEP) == ("16", "16")
    assert copies(gemm_problem(1024, 1024, 1022, "float32", "float32", "nt"), DEEP) == ("4", "4")
    # A row's end within a vector, of a copy whose leading dimension is padded.
    padded = dataclasses.replace(many, k=1018, a=dataclasses.replace(many.a, cols=1018, padded=True))
    assert copies(padded, DEEP)[0] == "4"
    assert [DEEP.by_vectors(one) for one in ((True, True), (True, False))] == [(True, True), (True, False)]
    narrow = SimtConfig(tile_m=64, tile_k=16, warps_m=2, stages=2)
    assert [narrow.by_vectors(one) for one in ((True, False), (False, True))] == [(False, False), (False, True)]
    for other in (SMALL, dataclasses.replace(DEEP, cluster_k=2)):
        assert other.by_vectors((True, True)) == (False, False)


@pytest.mark.parametrize(("config", "ctas"), [(SMALL, 1), (SMALL, 2), (GROUPS, 1), (TALL, 1)], ids=str)
def test_rows_that_begin_anywhere_are_written_by_warps(config, ctas, rng):
    config = dataclasses.replace(config, cluster_k=ctas)
    a, b = random_matrix(rng, FLOAT32, (45, 19)), random_matrix(rng, FLOAT32, (19, 67))
    d = poisoned(FLOAT32, (45, 67))
    counts = counts_of(config, a, b, d)
    assert_product(d, a, b)
    stores = [row for row in counts.instructions if "st.global" in row.text and row.requests]
    assert stores
    # 32 contiguous elements are in 5 sectors at most.
    assert sum(row.sectors for row in stores) <= 5 * sum(row.requests for row in stores)
    assert counts.bank_conflicts == 0


@pytest.mark.parametrize("ctas", [3, *(pytest.param(ctas, marks=pytest.mark.slow) for ctas in (2, 6, 16))])
@pytest.mark.parametrize("depth", [3, 100])
def test_a_cluster_adds_parts_of_k_in_order(ctas, depth, rng):
    config = dataclasses.replace(SMALL, cluster_k=ctas)
    a, b, c = (random_matrix(rng, FLOAT32, shape) for shape in ((45, depth), (depth, 40), (45, 40)))
    k_tiles = -(-depth // config.tile_k)
    edges = [k_tiles * cta // ctas * config.tile_k for cta in range(ctas + 1)]
    parts = [in_order(a[:, begin:end], b[begin:end]) for begin, end in itertools.pairwise(edges)]
    columns = laid_out(b, "col")
    d = multiply(a, columns, poisoned(FLOAT32, (45, 40)), config=config)
    np.testing.assert_array_equal(d, functools.reduce(np.add, parts))
    assert_product(multiply(a, columns, poisoned(FLOAT32, (45, 40)), c, 2.0, 1.0, config=config), a, b, c, 2.0, 1.0)


@pytest.mark.parametrize("ctas", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_groups_of_warps_add_parts_of_each_k_tile_in_order(ctas, rng):
    config = dataclasses.replace(GROUPS, cluster_k=ctas)
    # Ends within a k-tile, and within a group's part of it.
    a, b, c = (random_matrix(rng, FLOAT32, shape) for shape in ((45, 107), (107, 40), (45, 40)))
    edges = [4 * cta // ctas * config.tile_k for cta in range(ctas + 1)]
    parts = [in_groups(a[:, begin:end], b[begin:end], config) for begin, end in itertools.pairwise(edges)]
    d = multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (45, 40)), config=config)
    np.testing.assert_array_equal(d, functools.reduce(np.add, parts))
    # Rows that begin anywhere, of fewer k than there are groups.
    few = multiply(a[:, :3], b[:3, :37], poisoned(FLOAT32, (45, 37)), c[:, :37], 2.0, 1.0, config=config)
    assert_product(few, a[:, :3], b[:3, :37], c[:, :37], 2.0, 1.0)


@pytest.mark.parametrize("config", [SMALL, dataclasses.replace(SMALL, cluster_k=4), GROUPS], ids=str)
def test_alpha_scales_sums_and_not_their_parts(config):
    a, b = np.zeros((64, 32), np.float32), np.ones((64, 32), np.float32)
    a[:16], a[16:32], a[32] = 1e5, -1e5, 1
    out = np.full((32, 32), np.nan, np.float32)
    # 1e5 times alpha is infinite.
    multiply(a.T, b, out, alpha=1e34, config=config)
    assert (out == np.float32(1e34)).all()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [4, 5])
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
def test_every_config(config, columns, rng):
    # Rows of the result are multiples of 16 bytes, or begin anywhere.
    m, n, k = config.tile_m + 5, config.tile_n + columns, 5 * config.tile_k + 3
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    d = multiply(a, laid_out(b, "padded"), poisoned(FLOAT32, (m, n)), config=config)
    assert_product(d, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("config", [one for one in SPEC.configs if any(one.by_vectors((True, True)))], ids=str)
def test_configs_that_load_vectors_copy_unaligned_operands_by_element(config, rng):
    m, n, k = config.tile_m + 2, 23, config.tile_k + 2
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    moved = laid_out(a, "padded"), laid_out(b, "col", 1)
    assert_product(multiply(*moved, poisoned(FLOAT32, (m, n)), config=config), a, b)


@pytest.mark.parametrize("config", [WIDE, HIGH], ids=str)
def test_large_tiles_of_groups_copy_k_major_operands_by_element(config, rng):
    # The byte of a word that the compiler packs for a thread's place in a tile.
    assert config in SPEC.configs
    m, n, k = config.tile_m, config.tile_n, 127
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    d = multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (m, n)), config=config)
    np.testing.assert_array_equal(d, in_groups(a, b, config))


@pytest.mark.slow
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
def test_every_config_with_aligned_k_major_operands(config, rng):
    m, n, k = config.tile_m + 4, config.tile_n + 4, 5 * config.tile_k + 4
    a, b = random_matrix(rng, FLOAT32, (m, k)), random_matrix(rng, FLOAT32, (k, n))
    assert_product(multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (m, n)), config=config), a, b)


def test_a_column_major_result_in_a_batch(rng):
    a, b, c = (random_matrix(rng, FLOAT32, shape) for shape in ((2, 36, 40), (1, 40, 70), (2, 36, 70)))
    d = laid_out(poisoned(FLOAT32, (2, 36, 70)), "col")
    b = np.broadcast_to(b, (2, 40, 70))
    assert_product(multiply(a, b, d, laid_out(c, "col"), 1.0, 1.0), a, b, c, 1.0, 1.0)


@pytest.mark.parametrize(("k", "alpha"), [(0, 1.0), (40, 0.0)])
def test_nothing_to_multiply(k, alpha, rng):
    # Without K each operand is K-major: so are both with it, in the same kernel.
    a, b = np.full((33, k), np.nan, np.float32), np.full((36, k), np.nan, np.float32).T
    for config in (SMALL, DEEP):
        np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT32, (33, 36)), alpha=alpha, config=config), 0)
    c = random_matrix(rng, FLOAT32, (33, 36))
    np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT32, (33, 36)), c, alpha, -1.0), -c)


def test_c_is_not_read_where_beta_is_0_and_nan_is_kept(rng):
    a, b = random_matrix(rng, FLOAT32, (40, 20)), random_matrix(rng, FLOAT32, (20, 36))
    a[3, 5] = np.nan
    d = multiply(a, b, poisoned(FLOAT32, (40, 36)), np.full((40, 36), np.nan, np.float32))
    assert np.isnan(d[3]).all()
    assert not np.isnan(np.delete(d, 3, axis=0)).any()


@pytest.fixture
def only(monkeypatch):
    """Leave this kernel in one config to the virtual GPU, with all checks."""
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")

    def leave(config=SMALL):
        spec = dataclasses.replace(SPEC, configs=(config,))
        leave_kernels(monkeypatch, (spec,))

    return leave


#: Cases of epilogues, extents, the order of D, the types of operands and D.
EPILOGUES = [
    ("named_c", (37, 45, 20), "C", "float32"),
    ("row_bias_silu", (36, 44, 20), "F", "float32"),
    pytest.param("bias_gelu", (64, 64, 16), "C", "float32", marks=pytest.mark.slow),
    pytest.param("two_matrices", (33, 36, 9), "C", "float32", marks=pytest.mark.slow),
    ("beta_c_gelu_tanh", (37, 44, 20), "C", "bfloat16"),
    ("relu", (37, 45, 20), "C", "float8_e4m3fn"),
    pytest.param("bias_gelu", (37, 45, 20), "F", "float16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "shape", "order", "out"), EPILOGUES)
def test_epilogues(name, shape, order, out, only, rng):
    only()
    finish(CASES[name], rng, shape=shape, dtype="float32", out=out, order=order)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_epilogues_of_every_kind(name, only, rng):
    only()
    finish(CASES[name], rng, shape=(37, 45, 20), dtype="float32", out="float32")


@pytest.mark.parametrize(
    ("tile", "ctas"),
    [(SMALL, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((SMALL, 4), (SMALL, 16), (GROUPS, 3)))],
)
def test_epilogues_of_clusters_in_a_batch(tile, ctas, only, rng):
    only(dataclasses.replace(tile, cluster_k=ctas))
    finish(CASES["named_c"], rng, shape=(37, 44, 70), dtype="float32", out="float32", batch=(3,))


@pytest.mark.parametrize(
    ("ctas", "k", "alpha"),
    [(1, 0, 1.0), (2, 20, 0.0)] + [pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 20, 0.0), (2, 0, 1.0))],
)
def test_an_epilogue_of_nothing_and_its_absolute_maximum(ctas, k, alpha, only, rng):
    only(dataclasses.replace(SMALL, cluster_k=ctas))
    a, b = np.full((33, k), np.nan, np.float32), np.full((k, 37), np.nan, np.float32)
    bias = rng.standard_normal(37).astype(np.float32)
    bias[36], largest = -9.0, np.full(1, np.nan, np.float32)
    got = gm.gemm(
        a, b, alpha=alpha, bias=bias, epilogue=lambda acc: -acc, executor="vgpu", out=poisoned(FLOAT32, (33, 37)),
        absmax=largest,
    )  # fmt: skip
    np.testing.assert_array_equal(got, np.broadcast_to(-bias, (33, 37)))
    assert largest[0] == 9


@pytest.mark.parametrize("ctas", [1, 2])
def test_the_absolute_maximum_and_nan(ctas, only, rng):
    only(dataclasses.replace(SMALL, cluster_k=ctas))
    # Beyond the edges the products are 0, and the function of them is largest.
    a, b = (rng.uniform(1, 2, extents).astype(np.float32) for extents in ((37, 20), (20, 45)))
    largest = np.zeros(1, np.float32)

    def inverse(acc):
        return 1 / (acc + 1)

    got = gm.gemm(a, b, epilogue=inverse, executor="vgpu", absmax=largest)
    np.testing.assert_allclose(got, 1 / (a.astype("f8") @ b + 1), rtol=1e-5)
    assert largest[0] == np.abs(got).max()
    a[3, 5] = np.nan
    got = gm.gemm(a, b, epilogue=inverse, executor="vgpu", absmax=largest)
    assert np.isnan(got[3]).all()
    assert not np.isnan(np.delete(got, 3, axis=0)).any()
    assert np.isnan(largest[0])


@pytest.mark.parametrize(
    ("out", "n"),
    [
        pytest.param(*case, marks=[] if case in (("float16", 36), ("bfloat16", 45)) else [pytest.mark.slow])
        for case in itertools.product(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), (36, 45))
    ],
)
def test_other_types_of_the_result(out, n, rng):
    kind = dtype_named(out)
    a, b, c = (rng.integers(-4, 5, extents) for extents in ((37, 5), (5, n), (37, n)))
    d = multiply(
        a.astype(np.float32),
        laid_out(b.astype(np.float32), "col"),
        poisoned(kind, (37, n)),
        c.astype(kind.numpy()),
        1,
        2,
    )
    assert_product(d, a.astype(np.float32), b.astype(np.float32), c.astype(kind.numpy()), 1.0, 2.0)
