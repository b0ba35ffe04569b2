"""What float64_gemm takes, how wide it copies, and when it is chosen, with the kernel compiler not needed."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, FLOAT64
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.select import choose, choose_streamed
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.gemm.spec import SPEC
from gemmule.lab.products import gemm_problem

HOPPER, AMPERE, ADA = map(Arch.parse, ("sm_90a", "sm_80", "sm_89"))


def gemm(extent=512, **changes):
    a = contiguous(FLOAT64, extent, extent)
    return dataclasses.replace(GemmProblem(extent, extent, extent, (), a, a, None, a), **changes)


@pytest.mark.parametrize("arch", [HOPPER, AMPERE, ADA], ids=str)
@pytest.mark.parametrize("extent", [1, 127, 512, 1001, 4096, 8191])
def test_every_extent_finds_a_config(extent, arch):
    assert choose(gemm(extent), arch, multiprocessors=108).spec is SPEC


@pytest.mark.parametrize(
    ("size", "tile", "cluster"),
    [
        ((8192, 8192, 8192), (128, 128), 1),
        ((4095, 4095, 4095), (128, 128), 1),
        ((3072, 3072, 3072), (128, 128), 1),
        # Of a short K.
        ((4096, 3072, 256), (64, 64), 1),
        ((1024, 1024, 1024), (64, 64), 1),
        ((512, 512, 512), (32, 32), 1),
        ((256, 256, 4096), (32, 64), 2),
        ((512, 512, 8192), (64, 64), 2),
        ((16, 8192, 8192), (16, 64), 2),
        ((128, 128, 4096), (32, 32), 6),
    ],
)
def test_the_config_suits_the_size(size, tile, cluster):
    m, n, k = size
    problem = GemmProblem(
        m, n, k, (), contiguous(FLOAT64, m, k), contiguous(FLOAT64, k, n), None, contiguous(FLOAT64, m, n)
    )
    config = choose(problem, HOPPER, multiprocessors=132).config
    assert (config.tile_m, config.tile_n, config.cluster_k) == (*tile, cluster)


@pytest.mark.parametrize("extent", [6528, 7040, 8192, 10240])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_large_products_take_large_tiles(extent, layout):
    problem = gemm_problem(extent, extent, extent, "float64", "float64", layout)
    config = choose(problem, HOPPER, multiprocessors=132, chip="NVIDIA H200").config
    assert (config.tile_m, config.tile_n, config.stream_k) == (128, 128, 1)


@pytest.mark.parametrize("extent", [2048, 3072, 4096, 5120])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_tma_loads_the_operands_of_large_products(extent, layout):
    problem = gemm_problem(extent, extent, extent, "float64", "float64", layout)
    config = choose(problem, HOPPER, multiprocessors=132, chip="NVIDIA H200", tuned=False).config
    assert (config.tile_m, config.tile_n, config.mma_k, config.tma) == (128, 128, 16, 1)


def test_few_threads_copy_no_single_elements():
    thin = Float64Config(tile_m=16, tile_k=32, warps_m=1, cluster_k=4)
    assert thin in SPEC.configs
    assert SPEC.why_not(gemm(512), HOPPER, thin) is None
    assert "40 copies each are more than 32" in SPEC.why_not(gemm(511), HOPPER, thin)


def test_wide_warp_tiles_copy_no_single_elements():
    wide = Float64Config(tile_n=112, warps_m=4, warps_n=1, stages=3, mma_k=8)
    assert wide in SPEC.configs
    assert SPEC.why_not(gemm(512), HOPPER, wide) is None
    assert "228 of each thread are more than 224" in SPEC.why_not(gemm(511), HOPPER, wide)


def test_ampere_has_one_shape_of_products():
    able = [config for config in SPEC.configs if SPEC.why_not(gemm(), AMPERE, config) is None]
    assert able
    assert {(config.mma_m, config.mma_k) for config in able} == {(8, 4)}
    assert "sm_80 has float64 products of 8 x 8 x 4 only" in SPEC.why_not(gemm(), AMPERE, SPEC.default)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (gemm(a=contiguous(FLOAT32, 512, 512)), "A is float32; this kernel takes float64 only"),
        (gemm(a=StridedMatrix(FLOAT64, 512, 512, 1024, 2)), "A has strides (1024, 2)"),
        (gemm(c=contiguous(FLOAT64, 512, 512).transposed(), beta=1), "C and the output have different layouts"),
        (gemm(m=2**30 + 1), "M=1073741825 is more than 1073741824"),
    ],
)
def test_what_it_refuses(problem, reason):
    assert reason in SPEC.why_not(problem, HOPPER, SPEC.default)


def test_clusters_need_hopper():
    config = Float64Config(mma_m=8, mma_k=4, cluster_k=2)
    assert SPEC.why_not(gemm(), HOPPER, config) is None
    assert "sm_80 has no clusters" in SPEC.why_not(gemm(), AMPERE, config)


def test_shared_memory_of_the_architecture():
    config = dataclasses.replace(SPEC.default, stages=16)
    assert "needs 262144 bytes of shared memory, more than the 232448" in SPEC.why_not(gemm(), HOPPER, config)


@pytest.mark.parametrize(
    ("a", "along", "copies"),
    [
        (contiguous(FLOAT64, 64, 96), "k", "16"),
        (contiguous(FLOAT64, 96, 64).transposed(), "m", "16"),
        (contiguous(FLOAT64, 64, 97), "k", "8"),
        (StridedMatrix(FLOAT64, 64, 96, 98, 1), "k", "16"),
        # No copy lies half outside.
        (StridedMatrix(FLOAT64, 64, 97, 98, 1), "k", "8"),
        (contiguous(FLOAT64, 64, 96, alignment=8), "k", "8"),
        # Of a single row or column it does not matter where the next would be.
        (StridedMatrix(FLOAT64, 1, 96, 97, 1), "k", "16"),
        (StridedMatrix(FLOAT64, 96, 1, 1, 5), "m", "16"),
    ],
)
def test_the_widest_copies_that_rows_allow(a, along, copies):
    b, d = contiguous(FLOAT64, a.cols, 64), contiguous(FLOAT64, a.rows, 64)
    signature = dict(SPEC.signature(GemmProblem(a.rows, 64, a.cols, (), a, b, None, d), SPEC.default))
    assert (signature["a_major"], signature["a_copies"]) == (along, copies)


@pytest.mark.parametrize(
    ("d", "run"),
    [
        (contiguous(FLOAT64, 64, 72), "2"),
        (contiguous(FLOAT64, 64, 65), "1"),
        # Rows begin at multiples of 16 bytes, but do not end there.
        (StridedMatrix(FLOAT64, 64, 65, 66, 1), "1"),
        (contiguous(FLOAT64, 64, 72, alignment=8), "1"),
        (contiguous(FLOAT64, 72, 64).transposed(), "2"),
    ],
)
def test_how_much_is_written_at_once(d, run):
    a, b = contiguous(FLOAT64, d.rows, 64), contiguous(FLOAT64, 64, d.cols)
    problem = GemmProblem(d.rows, d.cols, 64, (), a, b, None, d)
    assert dict(SPEC.signature(problem, SPEC.default))["d_vector"] == run
    assert dict(SPEC.signature(dataclasses.replace(problem, c=d, beta=1), SPEC.default))["d_vector"] == run


@pytest.mark.parametrize(
    "values",
    [
        {"tile_m": 48},
        {"tile_n": 80},
        {"tile_k": 24},
        {"stages": 1},
        {"mma_m": 8},
        {"mma_k": 32},
        {"tile_m": 256},
        {"tile_m": 32, "warps_n": 8},
        {"cluster_k": 17},
        {"cluster_k": 2, "tile_m": 128, "tile_n": 128, "warps_m": 4, "stages": 3},
    ],
    ids=str,
)
def test_impossible_configs_are_refused(values):
    with pytest.raises(ArgumentError, match="config tile_m="):
        Float64Config(**values)


def test_stream_k_has_the_ctas_that_run_at_once_and_workspaces():
    config = Float64Config(tile_n=128, warps_n=4, mma_k=8, stream_k=1)
    launch = SPEC.launch(gemm(2048), config)
    partials, flags = launch.workspaces
    assert launch.grid == (264, 1, 1)
    assert (partials.nbytes, partials.zeroed) == (264 * 64 * 128 * 8, False)
    # A flag of each of two warpgroups.
    assert (flags.nbytes, flags.zeroed) == (264 * 2 * 8, False)
    # Tiles along M and N, and all of them shared: one whole tile each would leave less than a wave.
    assert [one.value for one in launch.params[-13:-8]] == [32, 16, 0, 248, 64]
    assert (
        0 in SPEC.launch(gemm(2048, m=0, a=contiguous(FLOAT64, 0, 2048), d=contiguous(FLOAT64, 0, 2048)), config).grid
    )
    assert SPEC.launch(gemm(64), dataclasses.replace(config, tile_n=64)).grid == (4, 1, 1)


def test_as_many_clusters_share_a_tile_as_run_at_once():
    config = Float64Config(mma_k=8, cluster_k=4, stream_k=1)
    assert (config.resident, config.running) == (3, 356)
    a, b, d = (contiguous(FLOAT64, *shape) for shape in ((250, 8000), (8000, 190), (250, 190)))
    launch = SPEC.launch(gemm(m=250, n=190, k=8000, a=a, b=b, d=d), config)
    # Twelve tiles.
    assert (launch.grid, launch.cluster) == ((48, 7, 1), (4, 1, 1))
    partials, flags = launch.workspaces
    # The last cluster of a tile writes none; each CTA reduces a quarter of a tile.
    assert (partials.nbytes, flags.nbytes) == (48 * 6 * 1024 * 8, 48 * 6 * 8)


@pytest.mark.parametrize(("k", "splits"), [(8000, 7), (16 * 4 * 16, 2), (16 * 4 * 16 - 16, 1), (0, 1)])
def test_short_k_is_shared_by_fewer(k, splits):
    config = Float64Config(mma_k=8, cluster_k=4, stream_k=1)
    assert config.splits(12, -(-k // 16)) == splits


def test_stream_k_takes_whole_warpgroups():
    with pytest.raises(ArgumentError, match="whole warpgroups"):
        Float64Config(stream_k=1, warps_m=1)


@pytest.mark.parametrize("warps", [(2, 2), (4, 4)], ids=str)
def test_tma_takes_the_warps_that_registers_are_divided_for(warps):
    """Others would wait for registers for ever, or begin with more than they ask for."""
    with pytest.raises(ArgumentError, match="256 threads that multiply"):
        Float64Config(128, 64, warps_m=warps[0], warps_n=warps[1], stream_k=1, tma=1)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_planned_memory_has_no_partials(dtype):
    problem = gemm_problem(1536, 1536, 1536, dtype, dtype, "nn")
    assert choose(problem, HOPPER, multiprocessors=132).config.stream_k
    assert not choose_streamed(problem, HOPPER, multiprocessors=132).config.stream_k
