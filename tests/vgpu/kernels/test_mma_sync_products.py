"""mma_sync_gemm on the virtual GPU: all types, layouts and widths of copies, banks, sums of 16 bits, TF32."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, INT8, INT32, Kind, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.mma_sync.config import MmaSyncConfig
from gemmule.kernels.mma_sync.spec import OUTPUTS, SPEC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: The config that compiles fastest.
SMALL = min((one for one in SPEC.configs if one.takes(INT8)), key=lambda config: config.tile_elements)
#: One type of each size; other types of that size differ in one word of each mma.sync.
BY_SIZE = [(FLOAT16, FLOAT16), (FLOAT32, FLOAT32), (INT8, INT32)]
#: Each layout of A and of B; what they do together matters for 8 bits only.
LAYOUTS = [("row", "row"), ("col", "col")]


def prepared(a, b, out, c=None, alpha=1, beta=0):
    problem = problem_of(a, b, out, c, alpha, beta)
    tf32 = a.dtype == np.float32
    return dataclasses.replace(problem, precision=Precision.TF32) if tf32 else problem


def multiply(a, b, out, c=None, alpha=1, beta=0, config=SMALL, **options):
    problem = prepared(a, b, out, c, alpha, beta)
    return run_product(Choice(SPEC, config), problem, a, b, out, c, **options)


def integers(rng, dtype, shape):
    return rng.integers(-4, 5, shape).astype(dtype.numpy())


def to_tf32(x):
    """Round to 11 significand bits, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize(
    ("dtype", "out", "layout"),
    [
        pytest.param(*types, layout, marks=[] if layout[0] == "col" or types[0] == FLOAT16 else [pytest.mark.slow])
        for types in BY_SIZE
        for layout in LAYOUTS
    ]
    + [pytest.param(INT8, INT32, ("col", "row"), marks=pytest.mark.slow)],
    ids=str,
)
def test_no_bank_conflicts_and_exact_integers(dtype, out, layout, rng):
    depth = 2 * SMALL.depth(dtype)
    a, b = integers(rng, dtype, (SMALL.tile_m, depth)), integers(rng, dtype, (depth, SMALL.tile_n))
    c, d = integers(rng, out, (SMALL.tile_m, SMALL.tile_n)), poisoned(out, (SMALL.tile_m, SMALL.tile_n))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    problem = prepared(*moved, d, c, 2, -1)
    signature = SPEC.signature(problem, SMALL)
    assert dict(signature)["tiles"] == "whole"
    counter = Counter()
    artifact = artifact_for(SPEC, SMALL, signature, virtual_arch())
    arrays = {"a": moved[0], "b": moved[1], "c": c, "d": d}
    launch(artifact, SPEC.launch(problem, SMALL), arrays, options=Options(checks=True), observers=(counter,))
    np.testing.assert_array_equal(d.astype(np.float64), 2 * (a.astype(np.float64) @ b.astype(np.float64)) - c)
    assert counter.counts.total("wavefronts") > 0
    assert counter.counts.bank_conflicts == 0


@pytest.mark.parametrize(
    ("dtype", "layout", "config"),
    [
        (FLOAT32, ("col", "row"), MmaSyncConfig(tile_m=32, tile_n=64, warps_m=1, stages=4)),
        pytest.param(
            FLOAT16, ("col", "row"), MmaSyncConfig(tile_m=32, tile_n=64, warps_m=1, stages=4), marks=pytest.mark.slow
        ),
        pytest.param(
            FLOAT32,
            ("row", "col"),
            MmaSyncConfig(tile_m=64, tile_n=32, warps_n=1, stages=4, cluster_k=2),
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_tiles_of_32_rows_or_columns(dtype, layout, config, rng):
    a, b = integers(rng, dtype, (67, 99)), integers(rng, dtype, (99, 69))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    d = multiply(*moved, poisoned(FLOAT32, (67, 69)), config=config)
    np.testing.assert_array_equal(d.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))


#: Types of inputs and output, layout, shape, elements that every matrix begins late, and the widths of copies then.
WIDTHS = [
    # Aligned rows that tiles do not divide.
    (BFLOAT16, BFLOAT16, ("row", "row"), (72, 80, 104), 0, ("16", "16", "8")),
    # Copies of 4 bytes, in both directions.
    (FLOAT16, FLOAT32, ("col", "row"), (66, 70, 67), 0, ("4", "4", "1")),
    # Element by element.
    (BFLOAT16, FLOAT32, ("row", "col"), (65, 68, 67), 0, ("2", "2", "4")),
    (INT8, INT8, ("col", "col"), (61, 66, 141), 1, ("1", "1", "1")),
]
MORE_WIDTHS = [
    (FLOAT16, FLOAT8_E4M3, ("row", "row"), (65, 71, 72), 0, ("16", "2", "1")),
    (FLOAT32, FLOAT32, ("col", "row"), (67, 69, 39), 0, ("4", "4", "1")),
    (INT8, INT8, ("col", "col"), (80, 72, 160), 0, ("16", "16", "8")),
    (FLOAT16, FLOAT32, ("row", "col"), (65, 66, 36), 0, ("8", "8", "1")),
    (FLOAT32, FLOAT32, ("row", "col"), (65, 66, 38), 0, ("8", "8", "1")),
    (INT8, INT32, ("row", "row"), (63, 67, 133), 0, ("1", "1", "1")),
    (FLOAT16, FLOAT8_E5M2, ("row", "row"), (72, 80, 104), 0, ("16", "16", "8")),
    (BFLOAT16, FLOAT8_E4M3, ("row", "row"), (72, 80, 104), 0, ("16", "16", "8")),
    (BFLOAT16, FLOAT8_E5M2, ("row", "col"), (65, 68, 67), 1, ("2", "2", "1")),
]


@pytest.mark.parametrize(
    ("dtype", "out", "layout", "shape", "offset", "copies"),
    [*WIDTHS, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_WIDTHS)],
    ids=str,
)
def test_types_and_widths_of_copies(dtype, out, layout, shape, offset, copies, rng):
    m, n, k = shape
    a, b, c = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n)), random_matrix(rng, out, (m, n))
    if dtype == FLOAT32:
        a, b = to_tf32(a), to_tf32(b)
    moved = [laid_out(x, kind, offset) for x, kind in zip((a, b), layout, strict=True)]
    d = laid_out(poisoned(out, (m, n)), "row", offset)
    signature = dict(SPEC.signature(prepared(*moved, d), SMALL))
    assert (signature["a_copies"], signature["b_copies"], signature["d_vector"]) == copies
    alpha, beta = (3, -2) if out.kind is Kind.INTEGER else (0.75, -1.5)
    assert_product(multiply(*moved, d, laid_out(c, "row", offset), alpha, beta), a, b, c, alpha, beta)


def test_every_pair_of_types_is_tried():
    tried = {case[:2] for case in [*WIDTHS, *MORE_WIDTHS]} | set(BY_SIZE)
    assert tried == {(dtype, out) for dtype, outs in OUTPUTS.items() for out in outs}


def test_a_column_major_result(rng):
    a, b = random_matrix(rng, FLOAT16, (72, 40)), random_matrix(rng, FLOAT16, (40, 88))
    c = random_matrix(rng, FLOAT16, (72, 88))
    d = laid_out(poisoned(FLOAT16, (72, 88)), "col")
    assert_product(multiply(a, b, d, laid_out(c, "col"), 1.0, 1.0), a, b, c, 1.0, 1.0)


def test_tf32_rounds_to_nearest(rng):
    a, b = random_matrix(rng, FLOAT32, (64, 96)), random_matrix(rng, FLOAT32, (96, 64))
    assert (a != to_tf32(a)).any()
    assert_product(multiply(a, b, poisoned(FLOAT32, (64, 64))), to_tf32(a), to_tf32(b))


@pytest.mark.parametrize("mode", ["exact", "hopper"])
def test_sums_of_16_bits(rng, mode):
    """Their errors are those of 11 significand bits: within that bound, beyond that of float32."""
    k = 256
    config = dataclasses.replace(SMALL, sum_bits=16)
    a, b = random_matrix(rng, FLOAT16, (64, k)), random_matrix(rng, FLOAT16, (k, 64))
    d = multiply(a, b, poisoned(FLOAT32, (64, 64)), config=config, mma=mode)
    wide = [x.astype(np.float64) for x in (a, b)]
    error = np.abs(d - wide[0] @ wide[1])
    size = np.abs(wide[0]) @ np.abs(wide[1])
    assert (error <= (k + 3) * FLOAT16.unit_roundoff * size).all()
    assert (error > (k + 3) * FLOAT32.unit_roundoff * size).any()


@pytest.mark.parametrize("dtype", [FLOAT16, pytest.param(INT8, marks=pytest.mark.slow)], ids=str)
def test_instructions_of_half_the_depth(rng, dtype):
    config = dataclasses.replace(SMALL, mma_k_bytes=16)
    a, b = integers(rng, dtype, (64, 128)), integers(rng, dtype, (128, 64))
    d = multiply(a, b, poisoned(OUTPUTS[dtype][1], (64, 64)), config=config)
    np.testing.assert_array_equal(d.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("parts", [2, *(pytest.param(parts, marks=pytest.mark.slow) for parts in (4, 8, 16))])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (FLOAT32, (70, 65, 0)),
        # Fewer k-tiles than CTAs, and as many as do not divide.
        (FLOAT32, (70, 65, 29)),
        (FLOAT32, (70, 65, 141)),
        pytest.param(INT8, (65, 70, 901), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ctas_of_a_cluster_share_a_tile(dtype, shape, parts, rng):
    m, n, k = shape
    config, out = dataclasses.replace(SMALL, cluster_k=parts), OUTPUTS[dtype][-1]
    a, b, c = integers(rng, dtype, (m, k)), integers(rng, dtype, (k, n)), integers(rng, out, (m, n))
    d = multiply(laid_out(a, "col"), b, poisoned(out, (m, n)), c, 2, -1, config=config)
    np.testing.assert_array_equal(d.astype(np.float64), 2 * (a.astype(np.float64) @ b.astype(np.float64)) - c)


OTHER_WARPS = {"warps_m": 1, "stages": 2}


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(INT8, {"k_bytes": 64, "stages": 5}), pytest.param(FLOAT16, OTHER_WARPS, marks=pytest.mark.slow),
     pytest.param(INT8, OTHER_WARPS, marks=pytest.mark.slow)],
    ids=str,
)  # fmt: skip
def test_other_slices_and_warps(rng, dtype, values):
    config, out = dataclasses.replace(SMALL, **values), OUTPUTS[dtype][1]
    a, b = random_matrix(rng, dtype, (72, 304)), random_matrix(rng, dtype, (304, 80))
    assert_product(multiply(laid_out(a, "col"), b, poisoned(out, (72, 80)), config=config), a, b)


@pytest.mark.parametrize("extent", [64, 72])
def test_unread_operands_do_not_spread_their_nans(extent, rng):
    nan = np.full((extent, extent), np.nan, np.float16)
    a, b = (random_matrix(rng, FLOAT16, (extent, extent)) for _ in range(2))
    assert_product(multiply(a, b, nan.copy(), nan, 1.0, 0.0), a, b)
    np.testing.assert_array_equal(multiply(nan, nan, nan.copy(), a, 0.0, 1.0), a)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        MmaSyncConfig(tile_m=256, warps_m=4, stages=4, cluster_k=4),
        MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=5),
        MmaSyncConfig(warps_n=4, stages=4, cluster_k=16),
    ],
    ids=str,
)
def test_clusters_that_copy_4_bytes_at_a_time(config, rng):
    m, n, k = 201, 133, 545
    a, b = (to_tf32(random_matrix(rng, FLOAT32, shape)) for shape in ((m, k), (k, n)))
    assert_product(multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (m, n)), config=config), a, b)


#: A thread's copies are as many as a mask has bits in the first two; CTAs of the others do not divide what is written.
MASKS = [MmaSyncConfig(tile_m=64, tile_n=32, warps_n=1, stages=4), MmaSyncConfig()]
PARTS = [
    MmaSyncConfig(tile_n=64, warps_m=4, stages=4, cluster_k=3),
    MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=5),
]
#: The last tile has a row and a column, the last k-tile an element; without K, C remains, by the first one's kernel.
ENDS = [((65, 129, 193), ("row", "col")), ((3, 5, 0), ("row", "col")), ((129, 67, 97), ("col", "row"))]
BEGIN_ANYWHERE = [
    pytest.param(
        config, *end, marks=[] if config is MASKS[0] or (config is PARTS[1] and end != ENDS[2]) else [pytest.mark.slow]
    )
    for config in (*MASKS, *PARTS)
    for end in ENDS
]


@pytest.mark.parametrize(("config", "shape", "layout"), BEGIN_ANYWHERE, ids=str)
def test_tf32_lines_that_begin_anywhere(config, shape, layout, rng):
    m, n, k = shape
    a, b, c = (integers(rng, FLOAT32, shape) for shape in ((m, k), (k, n), (m, n)))
    moved = [laid_out(x, kind, 1) for x, kind in zip((a, b), layout, strict=True)]
    d = multiply(*moved, poisoned(FLOAT32, (m, n)), c, 2, -1, config=config)
    np.testing.assert_array_equal(d.astype(np.float64), 2 * (a.astype(np.float64) @ b.astype(np.float64)) - c)


#: Several clusters share a tile, of two CTAs, of one and of four; the last has four times as many threads.
SPLIT = [
    MmaSyncConfig(tile_m=64, tile_n=64, stages=4, cluster_k=2, split_k=1),
    pytest.param(MmaSyncConfig(tile_m=64, tile_n=64, stages=4, split_k=1), marks=pytest.mark.slow),
    pytest.param(MmaSyncConfig(tile_m=64, tile_n=64, stages=3, cluster_k=4, split_k=1), marks=pytest.mark.slow),
    pytest.param(MmaSyncConfig(warps_n=4, stages=4, cluster_k=2, split_k=1), marks=pytest.mark.slow),
    pytest.param(MmaSyncConfig(tile_m=64, warps_n=4, stages=4, cluster_k=2, split_k=1), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("config", SPLIT, ids=str)
def test_clusters_share_a_tile_through_a_workspace(config, rng):
    # Tiles, k-tiles and parts that do not divide, one part, a vector of the result, and no K.
    for (m, n, k), layout, parts in (
        ((65, 67, 1057), ("row", "col"), 2),
        ((61, 71, 605), ("row", "col"), 1),
        ((67, 68, 97), ("col", "row"), 1),
        ((3, 5, 0), ("row", "col"), 1),
    ):
        a, b, c = (integers(rng, FLOAT32, shape) for shape in ((m, k), (k, n), (m, n)))
        moved = [laid_out(x, kind, 1) for x, kind in zip((a, b), layout, strict=True)]
        d = poisoned(FLOAT32, (m, n))
        assert SPEC.launch(prepared(*moved, d, c, 2, -1), config).grid[1] >= parts
        d = multiply(*moved, d, c, 2, -1, config=config)
        np.testing.assert_array_equal(d.astype(np.float64), 2 * (a.astype(np.float64) @ b.astype(np.float64)) - c)
