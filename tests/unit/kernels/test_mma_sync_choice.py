"""What mma_sync_gemm takes, how wide it copies, and when it is chosen, with the kernel compiler not needed."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H100_RATES, H200_RATES
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.kernels.mma_sync.config import MmaSyncConfig
from gemmule.kernels.mma_sync.cost import is_faster, predicted_us
from gemmule.kernels.mma_sync.launch_geometry import splits
from gemmule.kernels.mma_sync.spec import CONFIGS, SPEC
from gemmule.lab.products import LAYOUTS, gemm_problem

NARROW = MmaSyncConfig(tile_m=32, tile_n=64, warps_m=1, stages=4)
#: Warp tiles of 48 rows, of which the second would begin within a line of 32 words.
OF_48_ROWS = MmaSyncConfig(tile_m=96, stages=4)
HOPPER, AMPERE, ADA = map(Arch.parse, ("sm_90a", "sm_80", "sm_89"))


def gemm(dtype, out, extent=512, **changes):
    a, d = contiguous(dtype, extent, extent), contiguous(out, extent, extent)
    return dataclasses.replace(GemmProblem(extent, extent, extent, (), a, a, None, d), **changes)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (gemm(FLOAT16, FLOAT16), "mma_sync_gemm"),
        (gemm(BFLOAT16, FLOAT32, 2049), "mma_sync_gemm"),
        (gemm(BFLOAT16, FLOAT32, 127), "mma_sync_small"),
        (gemm(INT8, INT32), "mma_sync_gemm"),
        (gemm(FLOAT32, FLOAT32, precision=Precision.TF32), "mma_sync_gemm"),
        (gemm(FLOAT32, FLOAT32), "simt_gemm"),
        (gemm(FLOAT16, FLOAT16, a=StridedMatrix(FLOAT16, 512, 512, -512, -1)), "gemm_upcast"),
        (gemm(FLOAT64, FLOAT64), "float64_gemm"),
    ],
)
def test_choice(problem, name):
    registry_choice = choose(problem, AMPERE, multiprocessors=108)
    assert registry_choice.spec.name == name


def test_no_config_of_the_search_sums_in_16_bits():
    assert {config.sum_bits for config in SPEC.configs} == {32}


@pytest.mark.parametrize(
    ("problem", "config", "reason"),
    [
        (gemm(FLOAT32, FLOAT32), SPEC.default, "for precision='tf32'"),
        (gemm(FLOAT64, FLOAT64), SPEC.default, "both of one type among"),
        (gemm(FLOAT16, FLOAT16, b=contiguous(BFLOAT16, 512, 512)), SPEC.default, "A is float16 and B is bfloat16"),
        (gemm(INT8, FLOAT32), SPEC.default, "the output is float32; from int8 this kernel makes int8 and int32"),
        (gemm(FLOAT16, FLOAT16, c=contiguous(FLOAT32, 512, 512), beta=1), SPEC.default, "C is float32"),
        (gemm(INT8, INT32), NARROW, "tiles of int8 must be multiples of 64 bytes"),
        (gemm(FLOAT32, FLOAT32, precision=Precision.TF32), OF_48_ROWS, "warp tiles whole lines of 64 or 128 bytes"),
        (gemm(BFLOAT16, BFLOAT16), MmaSyncConfig(sum_bits=16), "accumulates in float16; from bfloat16"),
        (gemm(FLOAT16, FLOAT16, a=StridedMatrix(FLOAT16, 512, 512, 1024, 2)), SPEC.default, "A has strides"),
        (gemm(FLOAT16, FLOAT16, c=contiguous(FLOAT16, 512, 512).transposed(), beta=1), SPEC.default, "layouts"),
        (gemm(FLOAT16, FLOAT16, 511), SPEC.default, "element by element"),
        (gemm(FLOAT16, FLOAT16, m=2**30 + 1), SPEC.default, "more than 1073741824"),
    ],
)
def test_what_it_refuses(problem, config, reason):
    assert reason in SPEC.why_not(problem, HOPPER, config)


def test_clusters_need_hopper():
    split = next(one for one in SPEC.configs if one.cluster_k == 2)
    assert SPEC.why_not(gemm(FLOAT16, FLOAT16), HOPPER, split) is None
    assert "sm_80 has no clusters, which sm_90" in SPEC.why_not(gemm(FLOAT16, FLOAT16), AMPERE, split)
    assert SPEC.launch(gemm(FLOAT16, FLOAT16), split).grid == (2 * 64, 1, 1)
    assert SPEC.launch(gemm(FLOAT16, FLOAT16), split).cluster == (2, 1, 1)
    large = next(one for one in SPEC.configs if one.cluster_k == 16)
    assert SPEC.why_not(tf32(128, 128, 4096, "nn"), HOPPER, large) is None
    assert "known to fit on sm_90 only" in SPEC.why_not(tf32(128, 128, 4096, "nn"), Arch.parse("sm_100a"), large)
    assert large not in SPEC.configs_on(dataclasses.replace(H200_RATES, multiprocessors=60))


def tf32(m, n, k, layout):
    return dataclasses.replace(gemm_problem(m, n, k, "float32", "float32", layout), precision=Precision.TF32)


@pytest.mark.parametrize(
    ("shape", "layout", "cluster_k"),
    [
        # Few tiles and a long K, a K too short for it, and a tile for each SM.
        ((285, 175, 5531), "nt", 8),
        ((81, 131, 957), "tn", 16),
        ((81, 131, 33), "tn", 1),
        ((789, 789, 65), "tt", 1),
    ],
)
def test_where_tiles_are_few_clusters_split_k(shape, layout, cluster_k):
    assert SPEC.cheapest(tf32(*shape, layout), HOPPER, H200_RATES)[0].cluster_k == cluster_k


def test_shared_memory_of_the_architecture():
    problem = gemm(FLOAT16, FLOAT16)
    largest = max(SPEC.configs, key=lambda config: config.shared_bytes)
    assert SPEC.why_not(problem, HOPPER, largest) is None
    assert "196608 bytes of shared memory, more than the 166912 of sm_80" in SPEC.why_not(problem, AMPERE, largest)
    assert SPEC.why_not(problem, ADA, SPEC.default) is None


@pytest.mark.parametrize("extent", [127, 1000, 1001, 2047, 4098])
@pytest.mark.parametrize(("dtype", "out"), [(FLOAT16, FLOAT16), (BFLOAT16, FLOAT32), (INT8, INT32)], ids=str)
def test_every_extent_finds_a_config(dtype, out, extent):
    # Hopper's own kernels stand before it, and take what has whole 16 bytes; another is for small products.
    others = tuple(
        spec for spec in REGISTRY if not all(arch.specific for arch in spec.archs) and spec.name != "mma_sync_small"
    )
    assert choose(gemm(dtype, out, extent), HOPPER, others, multiprocessors=132).spec is SPEC


@pytest.mark.parametrize(
    ("a", "along", "copies"),
    [
        (contiguous(FLOAT16, 64, 96), "k", "16"),
        (contiguous(FLOAT16, 96, 64).transposed(), "m", "16"),
        (contiguous(FLOAT16, 64, 100), "k", "8"),
        (contiguous(FLOAT16, 64, 98), "k", "4"),
        (contiguous(FLOAT16, 64, 97), "k", "2"),
        (contiguous(FLOAT16, 64, 96, alignment=2), "k", "2"),
        (contiguous(FLOAT16, 64, 96, alignment=8), "k", "8"),
        # Of a single row or column it does not matter where the next would be.
        (contiguous(FLOAT16, 1, 97), "k", "16"),
        (StridedMatrix(FLOAT16, 97, 1, 1, 5), "m", "16"),
        (StridedMatrix(FLOAT16, 64, 96, 0, 1), "k", "16"),
    ],
)
def test_the_widest_copies_that_rows_allow(a, along, copies):
    problem = GemmProblem(
        a.rows, 64, a.cols, (), a, contiguous(FLOAT16, a.cols, 64), None, contiguous(FLOAT16, a.rows, 64)
    )
    signature = dict(SPEC.signature(problem, SPEC.default))
    assert (signature["a_major"], signature["a_copies"]) == (along, copies)


def test_batches_that_begin_anywhere_are_not_taken_for_aligned():
    inner = contiguous(FLOAT16, 256, 256, (3,))
    odd = dataclasses.replace(inner, batch_strides=(256 * 256 + 1,))
    problem = GemmProblem(256, 256, 256, (3,), odd, inner, None, odd)
    signature = dict(SPEC.signature(problem, SPEC.default))
    assert (signature["a_copies"], signature["b_copies"], signature["d_vector"]) == ("2", "16", "1")
    assert signature["tiles"] == "ragged"


@pytest.mark.parametrize(
    ("d", "run"),
    [
        (contiguous(FLOAT16, 64, 72), "8"),
        (contiguous(FLOAT16, 64, 65), "1"),
        # Rows begin at multiples of 16 bytes, but do not end there.
        (StridedMatrix(FLOAT16, 64, 65, 72, 1), "1"),
        (contiguous(FLOAT16, 64, 72, alignment=8), "1"),
        (contiguous(FLOAT32, 64, 68), "4"),
        (contiguous(FLOAT16, 72, 64).transposed(), "8"),
    ],
)
def test_how_much_is_written_at_once(d, run):
    a, b = contiguous(FLOAT16, d.rows, 64), contiguous(FLOAT16, 64, d.cols)
    problem = GemmProblem(d.rows, d.cols, 64, (), a, b, None, d)
    assert dict(SPEC.signature(problem, SPEC.default))["d_vector"] == run
    assert dict(SPEC.signature(dataclasses.replace(problem, c=d, beta=1), SPEC.default))["d_vector"] == run


@pytest.mark.parametrize(
    "values",
    [
        {"tile_m": 80},
        {"tile_n": 160},
        {"k_bytes": 96},
        {"stages": 1},
        {"mma_k_bytes": 8},
        {"sum_bits": 64},
        {"cluster_k": 0},
        {"cluster_k": 17},
        {"sum_bits": 16, "cluster_k": 2},
        {"tile_m": 64, "tile_n": 64, "warps_n": 4},
        {"tile_m": 64, "tile_n": 64, "warps_m": 4, "k_bytes": 64, "stages": 2},
    ],
)
def test_impossible_configs_are_refused(values):
    with pytest.raises(ArgumentError, match="config tile_m="):
        MmaSyncConfig(**values)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", "bfloat16"), ("float32", "float32"), ("int8", "int32")])
def test_it_is_faster_than_what_takes_longer_than_predicted(dtype, out, layout, rng):
    """A bound of the time decides most comparisons: it must be below the time of every size."""
    for _ in range(100):
        # Half of them with aligned lines.
        unit, gpu = rng.choice([1, 16]), (H100_RATES, H200_RATES)[rng.integers(2)]
        m, n, k = (-(-int(2**log) // unit) * unit for log in rng.uniform(0, 14, 3))
        problem = gemm_problem(int(m), int(n), int(k), dtype, out, layout, batch=(3,) if rng.integers(2) else ())
        us = predicted_us(problem, gpu)
        assert is_faster(problem, 1.001 * us, gpu)
        assert not is_faster(problem, 0.999 * us, gpu)


@pytest.mark.parametrize("shape", [(160, 96, 320), (864, 1328, 2224), (2896, 1776, 1536)], ids=str)
def test_results_of_8_bits_take_no_less_of_mn_major_operands(shape):
    across, along = (gemm_problem(*shape, "int8", "int8", layout) for layout in ("nn", "nt"))
    assert predicted_us(across, H200_RATES) >= predicted_us(along, H200_RATES)


def test_k_tiles_times_parts_fit_32_bits():
    for config in (one for one in CONFIGS if one.split_k):
        for k_tiles in (1_000_000, 5_468_750, 60_000_000):
            assert (k_tiles + 1) * config.cluster_k * splits(config, 1, k_tiles) < 2**31
