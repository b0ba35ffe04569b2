"""Predictions of the Hopper kernel: the config that a product gets, and the launches that overlap."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.block_scales import BlockScales
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT32, Precision
from gemmule.core.epilogue import ACC, Epilogue, Expression
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import TensorMapParam
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((8192, 8192, 8192), {"tile_elements": 128 * 192}),
        ((4096, 4096, 1024), {"tile_m": 128, "cluster_k": 1}),
        ((1024, 1024, 1024), {"tile_elements": 64 * 128}),
        ((512, 512, 512), {"tile_elements": 64 * 32, "cluster_k": 1}),
        ((64, 576, 7168), {"tile_m": 64, "cluster_k": 8}),
        ((1, 4096, 4096), {"tile_m": 64, "swap_ab": 1}),
    ],
    ids=str,
)
def test_the_config_suits_the_product(shape, wanted):
    """Large tiles where there are many, small ones where there are few, shared sums where they are long besides."""
    problem = gemm_problem(*shape, "bfloat16", "bfloat16", "nn")
    config = choose(problem, HOPPER, multiprocessors=132).config
    assert {name: getattr(config, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("shape", "layout", "straight", "crooked"),
    [((384, 3544, 1016), "nt", 1024, 1016), ((672, 2088, 792), "nn", 832, 792), ((208, 5696, 2200), "nt", 2240, 2200)],
)
def test_lines_that_begin_anywhere_want_larger_tiles(shape, layout, straight, crooked):
    """What tiles bring anew takes longer then; it is predicted to, by about as much as was measured."""
    m, n, _ = shape
    small = HopperGemmConfig(tile_m=64, tile_n=96, stages=8, pingpong=1, cluster_m=1, swap_ab=1)
    large = SPEC.default
    slower = []
    for k in (straight, crooked):
        # The result and B in rows begin at multiples of 128 bytes or not with n.
        width = n if k == crooked else -(-n // 64) * 64
        problem = gemm_problem(m, width, k, "bfloat16", "bfloat16", layout)
        slower.append(SPEC.cost(problem, small, H200_RATES) / SPEC.cost(problem, large, H200_RATES))
    assert slower[1] > 1.2 * slower[0]


@pytest.mark.parametrize(
    ("shape", "overlaps"), [((512, 512, 512), True), ((128, 11008, 4096), False), ((8192, 8192, 8192), True)]
)
def test_launches_overlap_but_where_memory_is_the_limit(shape, overlaps):
    problem = gemm_problem(*shape, "bfloat16", "bfloat16", "nn")
    assert SPEC.launch(problem, SPEC.default).overlaps == overlaps


@pytest.mark.parametrize(
    ("shape", "tile", "overlaps"),
    [
        ((64, 4096, 14336), {"tile_m": 64, "tile_n": 64, "cluster_k": 2, "swap_ab": 1}, True),
        # 64 CTAs, of which twice as many have room.
        ((1, 4096, 14336), {"tile_m": 64, "tile_n": 8, "swap_ab": 1}, True),
        # 86 CTAs leave 46 multiprocessors idle; 172 tiles are more than a wave; 65 rows are not few.
        ((64, 11008, 4096), {"tile_m": 64, "tile_n": 128}, False),
        ((64, 11008, 4096), {"tile_m": 64, "tile_n": 64}, False),
        ((65, 4096, 14336), {"tile_m": 128, "tile_n": 64, "cluster_k": 2}, False),
        # Below 40 MB: 72 CTAs leave room for 60 of the next launch; 64 for all; 128 for none; in pairs, and in fours.
        ((68, 4608, 3584), {"tile_m": 64, "tile_n": 80, "swap_ab": 1}, False),
        ((68, 4096, 4096), {"tile_m": 64, "tile_n": 80, "swap_ab": 1}, True),
        ((68, 8192, 2048), {"tile_m": 64, "tile_n": 80, "swap_ab": 1}, True),
        ((68, 4608, 3584), {"tile_m": 64, "tile_n": 80, "cluster_n": 2, "swap_ab": 1}, True),
        ((68, 4608, 3584), {"tile_m": 64, "tile_n": 80, "cluster_m": 4, "swap_ab": 1}, False),
        # 15 and 24 clusters of four; two waves; fewer bytes, and more rows.
        ((68, 3840, 4096), {"tile_m": 64, "tile_n": 80, "cluster_m": 4, "swap_ab": 1}, True),
        ((68, 6144, 3072), {"tile_m": 64, "tile_n": 80, "cluster_m": 4, "swap_ab": 1}, True),
        ((68, 9216, 2048), {"tile_m": 64, "tile_n": 80, "swap_ab": 1}, True),
        ((68, 4608, 1024), {"tile_m": 64, "tile_n": 80, "swap_ab": 1}, True),
        ((256, 4608, 2048), {"tile_m": 64, "tile_n": 256, "swap_ab": 1}, True),
        # Beyond 40 MB: 20, 24 and 30 of 30 clusters of four; 64 and 48 of 66 of two; 14 of 15 of eight; more rows.
        ((96, 5120, 5120), {"tile_m": 64, "tile_n": 96, "cluster_m": 4, "swap_ab": 1}, False),
        ((96, 6144, 4096), {"tile_m": 64, "tile_n": 96, "cluster_m": 4, "swap_ab": 1}, True),
        ((96, 7680, 4096), {"tile_m": 64, "tile_n": 96, "cluster_m": 4, "swap_ab": 1}, False),
        ((160, 4096, 7168), {"tile_m": 64, "tile_n": 80, "cluster_n": 2, "swap_ab": 1}, False),
        ((160, 9216, 3072), {"tile_m": 192, "tile_n": 80, "cluster_n": 2, "swap_ab": 1}, True),
        ((224, 5120, 5120), {"tile_m": 128, "tile_n": 96, "cluster_m": 2, "cluster_n": 4, "stages": 6}, True),
        ((300, 9216, 3072), {"tile_m": 192, "tile_n": 80, "cluster_n": 4, "swap_ab": 1}, False),
    ],
)
def test_few_rows_overlap_where_a_wave_finds_its_place(shape, tile, overlaps):
    problem = gemm_problem(*shape, "bfloat16", "bfloat16", "nn")
    config = HopperGemmConfig(**({"pingpong": 1, "cluster_m": 1} | tile))
    assert SPEC.launch(problem, config).overlaps == overlaps


def test_lines_between_those_of_the_cache_cost_more():
    def times(n, k, layout="nn"):
        return SPEC.costs(gemm_problem(2048, n, k, "bfloat16", "bfloat16", layout), SPEC.configs, H200_RATES)

    aligned, both = times(2048, 2048), times(2040, 2040)
    assert min(both) > min(aligned)
    # Of operands along K, K alone decides where lines begin; N does for those of the result.
    assert times(1528, 2048, "nt") == pytest.approx(times(1536, 2048, "nt"), rel=0.05)
    assert min(times(2048, 2040, "nt")) > min(times(2048, 2048, "nt"))
    # One line has none beside it: what was learned differs by less than a percent.
    row = gemm_problem(1, 2048, 2040, "bfloat16", "bfloat16", "nn")
    padded = gemm_problem(1, 2048, 2048, "bfloat16", "bfloat16", "nn")
    assert min(SPEC.costs(row, SPEC.configs, H200_RATES)) <= 1.01 * min(SPEC.costs(padded, SPEC.configs, H200_RATES))


def _scaled(shape, lines=None, step=None):
    """A product of 8-bit floats, with scales for blocks of so many lines of A and of B, `step` elements apart."""
    m, n, k = shape
    a, b = contiguous(FLOAT8_E4M3, m, k, (), 16), contiguous(FLOAT8_E4M3, n, k, (), 16).transposed()
    epilogue, k_blocks = None, -(-k // 128)
    if lines is not None:
        of_a = StridedMatrix(FLOAT32, -(-m // lines[0]), k_blocks, 1, step or m, (), 4)
        of_b = StridedMatrix(FLOAT32, k_blocks, -(-n // lines[1]), step or n, 1, (), 4)
        epilogue = Epilogue(Expression((ACC,)), scales=BlockScales(of_a, of_b, *lines))
    d = contiguous(BFLOAT16, m, n, (), 16)
    return GemmProblem(m, n, k, (), a, b, None, d, precision=Precision.FLOAT8, epilogue=epilogue)


def test_scales_by_blocks_may_be_any_distance_apart():
    problem, step = _scaled((16, 32, 130 * 128), (1, 128), 1 << 40), 1 << 40
    config = HopperGemmConfig(tile_m=128, tile_n=128, stages=5, cluster_m=1)
    assert SPEC.why_not(problem, HOPPER, config) is None
    assert [x.strides for x in SPEC.launch(problem, config).params[-2:]] == [(1, step), (1, step)]


@pytest.mark.parametrize("lines", [None, (1, 128)])
@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (4096, 14336, 4096), (1104, 5936, 6528)])
@pytest.mark.parametrize("chip", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_tall_tiles_and_144_columns_are_for_a_scale_of_each_column(lines, shape, chip):
    chosen = choose(_scaled(shape, lines), HOPPER, multiprocessors=132, chip=chip).config
    assert chosen.tile_m == 128
    assert chosen.tile_n != 144


@pytest.mark.parametrize(("shape", "tile_n"), [((8192, 8192, 8192), 128), ((1104, 5936, 6528), 144)])
def test_tiles_with_a_scale_for_each_column_are_squares_unless_others_spare_a_wave(shape, tile_n):
    chosen = choose(_scaled(shape, (1, 1)), HOPPER, multiprocessors=132, chip="NVIDIA H200").config
    assert (chosen.tile_m, chosen.tile_n) == (128, tile_n)


def test_wide_8_bit_tiles_of_a_long_k_have_a_raster_of_16_rows():
    chosen = choose(_scaled((4096, 4096, 14336), (1, 128)), HOPPER, multiprocessors=132, chip="NVIDIA H200").config
    assert (chosen.tile_m, chosen.tile_n, chosen.group) == (128, 256, 16)


@pytest.mark.parametrize(
    ("shape", "tile_n"), [((4096, 4096, 14336), 128), ((7168, 4608, 4096), 128), ((8192,) * 3, 192)]
)
def test_8_bit_tiles_without_scales_by_blocks_are_squares_unless_others_fill_waves(shape, tile_n):
    chosen = choose(_scaled(shape, None), HOPPER, multiprocessors=132, chip="NVIDIA H200").config
    assert (chosen.tile_m, chosen.tile_n, chosen.cluster_size) == (128, tile_n, 1)


@pytest.mark.parametrize("lines", [None, (1, 1)])
def test_many_ctas_of_few_rows_have_fewer_loads_in_flight_than_few(lines):
    stages = [choose(_scaled((1, n, 8192), lines), HOPPER, multiprocessors=132).config.stages for n in (16384, 2048)]
    assert stages[0] < stages[1]


@pytest.mark.parametrize("shape", [(128, 4096, 4096), (4096, 128, 4096)])
@pytest.mark.parametrize(("rows", "fetched"), [(128, 128), (255, 128), (256, 256)])
def test_l2_fetches_less_around_a_box_where_memory_is_the_limit(shape, rows, fetched):
    problem = _scaled(tuple(rows if extent == 128 else extent for extent in shape))
    maps = [x for x in SPEC.launch(problem, SPEC.default).params if isinstance(x, TensorMapParam) and x.operand in "ab"]
    assert [one.fetched_bytes for one in maps] == [fetched] * 2


@pytest.mark.parametrize(
    ("rows", "tile", "overlaps"),
    [
        (128, {}, True),
        (33, {"tile_n": 96}, True),
        (128, {"swap_ab": 1}, True),
        # More rows; 86 tiles are more than a wave; few rows and divisions that are not early.
        (129, {}, False),
        (128, {"ctas": 80}, False),
        (32, {"tile_n": 96}, False),
    ],
)
def test_rows_of_8_bit_floats_overlap_if_each_cta_has_a_tile(rows, tile, overlaps):
    config = HopperGemmConfig(**({"tile_m": 128, "tile_n": 128, "cluster_m": 1} | tile))
    assert SPEC.launch(_scaled((rows, 11008, 8192)), config).overlaps == overlaps


@pytest.mark.parametrize("shape", [(1184, 848, 4304), (832, 1984, 6848), (320, 4032, 3552), (2928, 224, 3344)])
def test_few_8_bit_tiles_by_a_long_k_share_loads_among_four(shape):
    config = choose(_float8(*shape), HOPPER, multiprocessors=132, chip="NVIDIA H200").config
    assert (config.tile_m, config.pingpong, config.cluster_k) == (128, 0, 1)
    assert config.cluster_m * config.cluster_n >= 4


@pytest.mark.parametrize("shape", [(192, 80, 384), (608, 240, 240), (1056, 96, 112), (528, 256, 160)])
def test_narrow_cooperative_tiles_are_for_a_long_k(shape):
    config = choose(_float8(*shape), HOPPER, multiprocessors=132, chip="NVIDIA H200").config
    assert config.pingpong


def _float8(m, n, k):
    problem = gemm_problem(m, n, k, "float8_e4m3fn", "bfloat16", "nt")
    return dataclasses.replace(problem, precision=Precision.FLOAT8)
