"""The Hopper kernel's recipe: TMA loads as many bytes as its barriers expect, in boxes that TMA has."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import ExtentsParam, TensorMapParam
from gemmule.core.layout import contiguous
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm.config import CONSUMERS, EPI_TILE_M, K_BYTES, MAX_SHARED_BYTES, HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.hopper.grouped.config import GroupedConfig
from gemmule.kernels.hopper.syrk.config import SyrkConfig
from gemmule.kernels.hopper.tile_config import BARRIER_BYTES
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
LAYOUTS = ["nn", "nt", "tn", "tt"]


def test_a_box_has_at_most_256_rows():
    tall = {"tile_m": 512, "tile_n": 64, "stages": 2, "cluster_m": 1}
    with pytest.raises(ArgumentError, match="a CTA loads 512 rows of A for a k-tile; a TMA box has 256 at most"):
        HopperGemmConfig(**tall)
    # Two CTAs load half of them each.
    assert HopperGemmConfig(**tall, cluster_n=2).tma_box_rows_a == 256


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cluster_m": 3}, "cluster_m and cluster_n must be 1, 2 or 4"),
        ({"cluster_m": 1, "cluster_k": 9}, "cluster_m * cluster_n * cluster_k is 9, of at most 8"),
        ({"cluster_m": 2, "ctas": 1}, "cluster_m * cluster_n * cluster_k is 2, of at most 1"),
        ({"tile_n": 48, "cluster_m": 1, "cluster_k": 4}, "tile_n must be a multiple of 8 * cluster_k = 32"),
        ({"pingpong": 1, "side_by_side": 1}, "with pingpong=0, cluster_k=1 and split_k=0"),
        ({"tile_n": 104 + 8, "cluster_m": 1, "cluster_k": 2, "side_by_side": 1}, "with pingpong=0, cluster_k=1"),
        ({"tile_m": 192, "tile_n": 8, "side_by_side": 1}, "tile_m must be a multiple of 64, tile_n of 16 up to 256"),
        ({"consumers": 4}, "consumers must be one of 2, 3"),
        ({"consumers": 3}, "tile_m must be a multiple of 192"),
        ({"tile_m": 192, "pingpong": 1, "consumers": 3}, "with pingpong=0, side_by_side=0 and cluster_k=1"),
        ({"tile_m": 192, "side_by_side": 1, "consumers": 3}, "three consumers share a tile's rows: with pingpong=0"),
        (
            {"tile_m": 192, "cluster_m": 1, "cluster_k": 2, "consumers": 3},
            "with pingpong=0, side_by_side=0 and cluster",
        ),
        ({"tile_m": 192, "tile_n": 208, "consumers": 3}, "registers of three consumers hold 200 columns"),
    ],
)
def test_a_refused_cluster_names_its_fields(fields, reason):
    with pytest.raises(ArgumentError, match=re.escape(reason)):
        HopperGemmConfig(**fields)


def test_three_consumers_compute_plain_products():
    three = HopperGemmConfig(tile_m=192, tile_n=96, stages=4, consumers=3)
    assert "a gated epilogue needs both products in one thread" in three.why_not_gated(2, mn_major=False)
    assert dataclasses.replace(three, tile_m=128, consumers=2).why_not_gated(2, mn_major=False) is None
    for kind in (SyrkConfig, GroupedConfig):
        with pytest.raises(ArgumentError, match=r"must be 0, .*consumers 2$"):
            kind(tile_m=192, tile_n=96, stages=4, pingpong=0, consumers=3)


@pytest.mark.parametrize(
    ("inputs", "out", "precision"),
    [("int8", "int32", None), ("float8_e4m3fn", "bfloat16", "float8"), ("float32", "float32", "tf32")],
)
def test_three_consumers_multiply_16_bits(inputs, out, precision):
    three = HopperGemmConfig(tile_m=192, tile_n=96, stages=4, consumers=3)
    assert SPEC.launch(gemm_problem(256, 256, 256, "bfloat16", "bfloat16", "nt"), three).block == (512, 1, 1)
    problem = dataclasses.replace(gemm_problem(256, 256, 256, inputs, out, "nt"), precision=Precision.parse(precision))
    assert "three consumers multiply elements of 16 bits only" in SPEC.why_not(problem, HOPPER, three)


@pytest.mark.parametrize(("layout", "columns", "refused"), [("tn", 72, True), ("tn", 96, False), ("nt", 72, False)])
def test_three_consumers_have_no_registers_for_narrow_rows_of_two_mn_major_operands(layout, columns, refused):
    three = HopperGemmConfig(tile_m=192, tile_n=columns, stages=4, consumers=3)
    reason = SPEC.why_not(gemm_problem(256, 256, 256, "bfloat16", "bfloat16", layout), HOPPER, three)
    assert (reason is not None) == refused
    assert not refused or "three consumers have a multiple of 32 columns if both" in reason


def test_a_batch_has_at_most_as_many_matrices_as_32_bit_indices_take():
    strides = {"a": 8, "b": 64, "d": 8}
    for batch, refused in ((2**30, False), (2**31 - 1, True), (2**31, True)):
        one = gemm_problem(1, 8, 8, "bfloat16", "bfloat16", "nt")
        moved = {name: dataclasses.replace(x, batch_strides=(strides[name],)) for name, x in one.operands().items()}
        reason = SPEC.why_not(one.with_operands((batch,), moved), HOPPER, SPEC.default)
        assert (reason is not None) == refused
        assert not refused or reason.startswith(f"the batch of {batch} is more than {2**30}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_boxes_fill_a_stage(out, layout):
    for config in SPEC.configs:
        # Three consumers refuse narrow rows of two MN-major operands.
        if layout != "tn" or config.consumers == CONSUMERS or config.tile_n % 32 == 0:
            assert_boxes_fill_a_stage(config, out, layout)


def assert_boxes_fill_a_stage(config, out, layout):
    problem = gemm_problem(1000, 520, 1032, "bfloat16", out, layout)
    assert SPEC.why_not(problem, HOPPER, config) is None
    params = SPEC.launch(problem, config).params
    maps = [param for param in params if isinstance(param, TensorMapParam)]
    if maps[1].extents[0] != 1032:
        # A warpgroup's part of an MN-major B are whole rows.
        assert config.mma_n % maps[1].box[0] == 0
    names = ["b", "a"] if config.swap_ab else ["a", "b"]
    assert [param.operand for param in maps] == [*names, "d", "d"]
    for param, tile, sharers in zip(
        maps, (config.tile_m, config.tile_n), (config.cluster_n, config.cluster_m), strict=False
    ):
        brought = 2 * math.prod(param.box)
        # Along K a copy brings all lines of the CTA's part; across K one for every row of the swizzle.
        copies = 1 if param.extents[0] == 1032 else tile // param.box[0]
        assert copies * brought * sharers == tile * K_BYTES
    item = problem.d.dtype.itemsize
    for param in maps[2:]:
        # The boxes of all CTAs make up a block of 64 rows of the tile, or columns with swap_ab.
        along, across = param.box[:2]
        assert config.tile_n % (config.cluster_k * (across if config.swap_ab else along)) == 0
        assert (along * item if config.swap_ab else across * 2) == K_BYTES
    for param in maps:
        row_bytes = param.box[0] * (2 if param.operand in "ab" else item)
        # Rows without a swizzle are an odd number of 16 bytes: 8 of them begin in different banks.
        assert row_bytes == param.swizzle <= K_BYTES or row_bytes // 16 % 2 == 1
        assert all(0 < side <= 256 for side in param.box)
        assert all(pitch > 0 and pitch % 16 == 0 for pitch in param.pitches)
    a, b, d = (1000, 1032, 1), (520, 1032, 1), (1000, 520, 1)
    extents = [param.extents for param in params if isinstance(param, ExtentsParam)]
    assert extents == ([b, a, (520, 1000, 1), (520, 1000, 1)] if config.swap_ab else [a, b, d, d])


@pytest.mark.parametrize("swap_ab", [0, 1])
def test_swap_ab_of_a_column_major_result_is_the_product_itself(swap_ab):
    problem = gemm_problem(1000, 520, 264, "float16", "float16", "nn")
    turned = dataclasses.replace(problem, d=contiguous(problem.d.dtype, 520, 1000).transposed())
    config = HopperGemmConfig(swap_ab=swap_ab)
    maps = [param.operand for param in SPEC.launch(turned, config).params if isinstance(param, TensorMapParam)]
    assert maps[:2] == (["a", "b"] if swap_ab else ["b", "a"])
    # What is contiguous along K does not change with the roles.
    assert dict(SPEC.signature(turned, config))["a_major"] == ("k" if swap_ab else "m")


def test_clusters_share_the_tiles():
    problem = gemm_problem(16384, 8192, 1032, "bfloat16", "bfloat16", "nn")
    few = gemm_problem(8, 8, 1032, "bfloat16", "bfloat16", "nn")
    for config in SPEC.configs:
        launch = SPEC.launch(problem, config)
        assert launch.cluster == (config.cluster_size, 1, 1)
        assert launch.grid[0] % config.cluster_size == 0
        # Clusters of three leave one SM of each GPC of 16.
        assert 117 <= launch.grid[0] <= 132
        # 17 k-tiles are divided into three parts at most.
        assert SPEC.launch(few, config).grid == (config.cluster_size, 3 if config.split_k else 1, 1)


def test_lines_and_matrices_that_lie_apart():
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    wide = {name: dataclasses.replace(one, row_stride=2048, batch_strides=(1 << 22,))
            for name, one in (("a", problem.a), ("b", problem.b), ("d", problem.d))}  # fmt: skip
    params = SPEC.launch(dataclasses.replace(problem, batch=(3,), **wide), SPEC.default).params
    maps = [param for param in params if isinstance(param, TensorMapParam)]
    assert {param.pitches for param in maps} == {(2 * 2048, 2 << 22)}
    assert {param.extents[2] for param in maps} == {3}


def test_shared_memory_holds_the_batches_of_epilogue_tiles():
    for config in SPEC.configs:
        stages, batches = config.epi_batches(2)
        width = config.epi_tile_n(2)
        count = config.mma_tiles_m * config.mma_n // (config.cluster_k * width)
        size = -(-count // batches)
        # Several batches alternate in two buffers; one that is not of all tiles ends in the second.
        assert batches == count or (stages, batches % 2) == ((2 * size, 0) if batches > 1 else (count, 1))
        assert config.shared_bytes_of(2) >= config.bytes_without_epi_tiles + CONSUMERS * stages * EPI_TILE_M * width * 2
        assert config.shared_bytes_of(2) <= MAX_SHARED_BYTES
        assert width <= 16 or batches == count


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_shared_memory_holds_stages_of_c_and_their_barriers(itemsize):
    for config in SPEC.configs:
        stages, batches = config.epi_batches(itemsize, reads_c=True)
        tile_bytes = EPI_TILE_M * config.epi_tile_n(itemsize) * itemsize
        count = config.mma_tiles_m * config.mma_n // (config.cluster_k * config.epi_tile_n(itemsize))
        assert config.epi_stages(itemsize) <= stages <= count
        assert stages >= -(-count // batches)
        needed = config.bytes_without_epi_tiles + CONSUMERS * stages * tile_bytes
        assert needed <= config.shared_bytes_of(itemsize, reads_c=True) <= MAX_SHARED_BYTES
        # Of 8 bytes each: full and empty ones of k-tiles, those of C's stages, and of the cluster's partial sums.
        assert 8 * (2 * config.stages + CONSUMERS * stages + 2 * CONSUMERS) <= BARRIER_BYTES


def test_shared_memory_holds_the_stages_and_their_barriers():
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    for config in SPEC.configs:
        slices = config.stages * (config.tile_m + config.tile_n) * K_BYTES
        boxes = CONSUMERS * config.epi_stages(2) * EPI_TILE_M * config.epi_tile_n(2) * 2
        # One barrier of 8 bytes says that a stage is full, one that it is free.
        assert SPEC.launch(problem, config).shared_bytes >= slices + boxes + 16 * config.stages


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_in_columns_is_the_transposed_product(layout):
    problem = gemm_problem(1000, 520, 264, "float16", "float16", layout)
    turned = dataclasses.replace(problem, d=contiguous(problem.d.dtype, 520, 1000).transposed())
    params = SPEC.launch(turned, SPEC.default).params
    assert [param.operand for param in params if isinstance(param, TensorMapParam)] == ["b", "a", "d", "d"]


def tf32(layout):
    return dataclasses.replace(gemm_problem(1000, 520, 264, "float32", "float32", layout), precision=Precision.TF32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: dataclasses.replace(p, alpha=0), "alpha is 0"),
        (lambda p: gemm_problem(1000, 520, 264, "bfloat16", "float64", "nn"), "makes bfloat16 and float16 and float32"),
        (lambda p: gemm_problem(1000, 520, 264, "float32", "float32", "nn"), "for precision='tf32'"),
        (lambda p: gemm_problem(1000, 520, 264, "float8_e4m3fn", "float32", "nt"), "pass precision='float8'"),
        (lambda p: gemm_problem(1000, 520, 264, "float64", "float64", "nt"), "one type among bfloat16, float16"),
        (lambda p: gemm_problem(1000, 528, 272, "int8", "int32", "nn"), "B is int8 and not contiguous along K"),
        (lambda p: tf32("tn"), "A is float32 and not contiguous along K"),
        (lambda p: tf32("nn"), "swap_ab must be 1"),
        (lambda p: gemm_problem(64, 64, 2**17, "int8", "int32", "nt"), "beyond K=131071"),
        (lambda p: dataclasses.replace(p, c=contiguous(FLOAT32, 1000, 520)), "C is float32 and the output bfloat16"),
        (lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, alignment=8)), "A begins at a multiple of 8"),
        (
            lambda p: dataclasses.replace(p, a=dataclasses.replace(p.a, row_stride=p.k + 1)),
            "leading dimension of 530 bytes",
        ),
        (
            lambda p: dataclasses.replace(p, b=dataclasses.replace(p.b, row_stride=-p.n)),
            "leading dimension of -1040 bytes",
        ),
        (
            lambda p: dataclasses.replace(p, b=dataclasses.replace(p.b, row_stride=1 << 40)),
            "leading dimension of 2199023255552",
        ),
        (lambda p: gemm_problem(1000, 520, 264, "float32", "float32", "nn"), "rounds them to TF32"),
    ],
)
def test_what_the_copy_engine_cannot_take(change, reason):
    problem = change(gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn"))
    assert reason in SPEC.why_not(problem, HOPPER, SPEC.default)


@pytest.mark.parametrize(("dtype", "out"), [("float32", "float32"), ("int8", "int32")])
def test_what_lies_along_k(dtype, out):
    problem = gemm_problem(1000, 528, 272, dtype, out, "nt")
    problem = dataclasses.replace(problem, precision=Precision.TF32)
    assert choose(problem, HOPPER, multiprocessors=132).spec is SPEC
    maps = [param for param in SPEC.launch(problem, SPEC.default).params if isinstance(param, TensorMapParam)]
    assert [param.tf32 for param in maps] == [dtype == "float32"] * 2 + [False] * 2
    depth = 128 // problem.a.dtype.itemsize
    assert [param.box[0] for param in maps[:2]] == [depth, depth]


def test_k_tiles_that_the_compiler_cannot_lay_out():
    problem = dataclasses.replace(gemm_problem(64, 64, 512, "float32", "float32", "nt"), precision=Precision.TF32)
    config = HopperGemmConfig(tile_m=128, tile_n=144, cluster_m=1, pingpong=1, swap_ab=1)
    assert "a multiple of 32 columns of B" in SPEC.why_not(problem, HOPPER, config)
    assert SPEC.why_not(problem, HOPPER, dataclasses.replace(config, tile_n=160)) is None


def test_a_sum_too_short_to_share():
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    short = HopperGemmConfig(tile_m=64, tile_n=64, pingpong=1, cluster_m=1, cluster_k=8)
    assert "5 k-tiles" in SPEC.why_not(problem, HOPPER, short)
    assert SPEC.why_not(problem, HOPPER, dataclasses.replace(short, cluster_k=4)) is None


def test_only_hopper_has_the_instructions():
    problem = gemm_problem(1000, 520, 264, "bfloat16", "bfloat16", "nn")
    for name in ("sm_80", "sm_100a"):
        assert "wgmma" in SPEC.why_not(problem, Arch.parse(name), SPEC.default)
    assert choose(problem, HOPPER).spec is SPEC


@pytest.mark.parametrize(
    "fields",
    [
        {"tile_m": 96},
        {"tile_n": 320},
        {"tile_n": 12, "swap_ab": 1},
        {"cluster_m": 4, "cluster_n": 4},
        {"stages": 8},
        {"tile_m": 256},
        {"cluster_m": 3},
        {"cluster_k": 2},
        {"cluster_m": 1, "cluster_k": 16, "tile_n": 128},
        {"cluster_m": 1, "cluster_k": 3, "tile_n": 128},
        {"cluster_m": 1, "cluster_k": 2},
    ],
)
def test_configs_that_cannot_be(fields):
    with pytest.raises(ArgumentError, match="config"):
        HopperGemmConfig(**fields)


@pytest.mark.parametrize(("tile_n", "able"), [(8, True), (24, True), (40, False), (48, True), (56, False), (64, True)])
def test_int8_takes_multiples_of_16_columns_beyond_24(tile_n, able):
    config = HopperGemmConfig(tile_m=64, tile_n=tile_n, pingpong=1, cluster_m=1)
    reason = SPEC.why_not(gemm_problem(640, 640, 640, "int8", "int32", "nt"), HOPPER, config)
    assert (reason is None) == able
    assert SPEC.why_not(gemm_problem(640, 640, 640, "bfloat16", "bfloat16", "nt"), HOPPER, config) is None


@pytest.mark.parametrize(
    ("tile", "able"), [((128, 256, 0), True), ((128, 128, 1), True), ((128, 160, 1), False), ((256, 192, 0), False)]
)
def test_tiles_have_registers_for_tf32_across_k(tile, able):
    tile_m, tile_n, pingpong = tile
    config = HopperGemmConfig(tile_m=tile_m, tile_n=tile_n, stages=3, pingpong=pingpong, cluster_m=1)
    assert (SPEC.why_not(tf32("tt"), HOPPER, config) is None) == able
    assert math.isfinite(SPEC.costs(tf32("tt"), (config,), H200_RATES)[0]) == able


@pytest.mark.parametrize(("tile_n", "able"), [(16, True), (32, True), (48, False), (64, True)])
def test_halves_of_gated_forms_are_lines_that_the_compiler_lays_out(tile_n, able):
    config = HopperGemmConfig(tile_m=64, tile_n=tile_n, pingpong=1, cluster_m=1)
    assert (config.why_not_gated(2, mn_major=False) is None) == able


@pytest.mark.parametrize(
    ("tile", "widths"),
    [
        ({"tile_n": 176}, (88, 16)),
        ({"tile_n": 208}, (104, 16)),
        ({"tile_n": 192}, (64, 32)),
        ({"tile_n": 80}, (16, 16)),
        ({"tile_n": 176, "swap_ab": 1}, (16, 16)),
        ({"tile_n": 176, "cluster_m": 2}, (16, 16)),
        # No shared memory is left.
        ({"tile_n": 208, "stages": 5}, (16, 16)),
    ],
)
def test_epilogue_tiles_of_an_odd_multiple_of_16_columns_are_half_as_wide_as_the_tile(tile, widths):
    config = HopperGemmConfig(**({"tile_m": 128, "stages": 3, "cluster_m": 1} | tile))
    assert tuple(config.epi_tile_n(item) for item in (2, 4)) == widths
    assert config.epi_stages(2) > 1 or widths[0] == 16


def test_8_bit_results_are_stored_in_boxes_of_16_bytes():
    """Rows of an unswizzled TMA box are multiples of 16 bytes; a warpgroup has half of the columns if side by side."""
    problem = gemm_problem(390, 272, 520, "bfloat16", "float8_e5m2", "nn")
    taken = [config for config in SPEC.configs if SPEC.why_not(problem, HOPPER, config) is None]
    assert any(config.side_by_side for config in taken)
    assert [str(config) for config in taken if config.epi_tile_n(1) % 16] == []
