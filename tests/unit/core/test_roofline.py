"""Roofline: the figures of published analyses, and verdicts on whole problems."""

import dataclasses

import pytest

from gemmule.core.chips import B200, CHIPS, GTX_1050_TI, H100_SXM, V100_SXM2
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, Precision
from gemmule.core.errors import ArgumentError, UnsupportedError
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, TransposeProblem
from gemmule.core.roofline import (
    Level,
    attainable,
    bound,
    fastest_unit,
    levels,
    problem_bound,
    ridge,
    tile_intensity,
)

MEASURED_V100 = 763e9


def square(size, dtype=FLOAT32, **changes):
    matrix = contiguous(dtype, size, size)
    return dataclasses.replace(GemmProblem(size, size, size, (), matrix, matrix, None, matrix), **changes)


def test_naive_kernel_at_measured_bandwidth():
    """64 FLOP for 5 transactions of 4 bytes, as the published analysis counts them."""
    intensity = 64 / (5 * 4)
    assert intensity == 3.2
    assert attainable(intensity, V100_SXM2.peaks.fp32, MEASURED_V100) == pytest.approx(2442e9, rel=1e-3)


def test_shared_memory_tile_is_no_longer_limited_by_bandwidth():
    assert tile_intensity(128, 128, 4) == 32
    assert V100_SXM2.peaks.fp32 / 32 == pytest.approx(490e9, rel=2e-3)
    assert attainable(32, V100_SXM2.peaks.fp32, MEASURED_V100) == V100_SXM2.peaks.fp32


def test_ridge_separates_the_two_regimes():
    peak, bandwidth = H100_SXM.peaks.fp32, H100_SXM.memory_bandwidth
    point = ridge(peak, bandwidth)
    assert point == pytest.approx(66.9e12 / 3.35e12)
    assert attainable(point, peak, bandwidth) == pytest.approx(peak)
    assert attainable(point / 2, peak, bandwidth) == pytest.approx(peak / 2)
    assert attainable(point * 2, peak, bandwidth) == peak


def test_tile_of_mixed_types():
    assert tile_intensity(64, 128, 2, 1) == 2 * 64 * 128 / (64 * 2 + 128)


@pytest.mark.parametrize(
    ("dtypes", "precision", "unit"),
    [
        ((FLOAT64, FLOAT64), Precision.IEEE, "fp64_tensor"),
        ((FLOAT32, FLOAT32), Precision.IEEE, "fp32"),
        ((FLOAT32, FLOAT32), Precision.TF32, "tf32_tensor"),
        ((FLOAT16, FLOAT16), Precision.IEEE, "fp16_tensor"),
        ((FLOAT16, BFLOAT16), Precision.IEEE, "tf32_tensor"),
        ((BFLOAT16, FLOAT8_E4M3), Precision.IEEE, "bf16_tensor"),
        ((FLOAT8_E4M3, FLOAT8_E4M3), Precision.IEEE, "fp8_tensor"),
        ((INT8, INT8), Precision.IEEE, "int8_tensor"),
        ((INT8, INT32), Precision.IEEE, "int32"),
        ((INT8, FLOAT16), Precision.IEEE, "fp16_tensor"),
        ((BFLOAT16, INT8), Precision.IEEE, "bf16_tensor"),
        ((INT8, FLOAT32), Precision.IEEE, "fp32"),
        ((FLOAT32, INT32), Precision.IEEE, "fp64_tensor"),
        ((FLOAT32, FLOAT64), Precision.TF32, "fp64_tensor"),
    ],
)
def test_fastest_unit_on_h100(dtypes, precision, unit):
    assert fastest_unit(H100_SXM, *dtypes, precision) == (unit, getattr(H100_SXM.peaks, unit))


def test_unit_that_an_old_chip_lacks():
    assert fastest_unit(V100_SXM2, BFLOAT16, BFLOAT16)[0] == "fp32"
    assert fastest_unit(GTX_1050_TI, FLOAT16, FLOAT16)[0] == "fp32"
    with pytest.raises(UnsupportedError, match="no unit of GTX 1050 Ti with a known peak rate multiplies int8 by int8"):
        fastest_unit(GTX_1050_TI, INT8, INT8)


def test_large_product_is_compute_bound_and_small_k_is_not():
    large = problem_bound(square(8192), H100_SXM)
    assert large.verdict == "compute-bound"
    assert large.seconds == pytest.approx(2 * 8192**3 / 66.9e12)
    assert large.rate == pytest.approx(66.9e12)
    thin = dataclasses.replace(square(8192), k=1, a=contiguous(FLOAT32, 8192, 1), b=contiguous(FLOAT32, 1, 8192))
    result = problem_bound(thin, H100_SXM)
    assert (result.verdict, result.limited_by) == ("memory-bound", "memory")
    assert result.seconds == pytest.approx((8192**2 + 2 * 8192) * 4 / 3.35e12)


def test_product_from_host_memory_waits_for_the_link():
    result = problem_bound(square(1024), H100_SXM, from_host=True)
    assert result.limited_by == "host link"
    assert result.seconds == pytest.approx(2 * 1024**2 * 4 / 64e9)
    assert problem_bound(square(32768, FLOAT64), H100_SXM, from_host=True).verdict == "compute-bound"


def test_transpose_is_memory_bound():
    matrix = contiguous(FLOAT32, 4096, 4096)
    result = problem_bound(TransposeProblem(4096, 4096, (), matrix, matrix.transposed()), GTX_1050_TI)
    assert result.verdict == "memory-bound"
    assert result.seconds == pytest.approx(2 * 4096**2 * 4 / 112e9)
    assert result.rate == 0


def test_empty_problem_takes_no_time():
    result = problem_bound(square(0), H100_SXM)
    assert (result.seconds, result.rate, result.verdict) == (0, 0, "compute-bound")


def test_measured_level_can_be_added():
    result = bound(1000, 1e3, {Level("L2", 10.0): 100, Level("memory", 1.0): 5})
    assert (result.compute_seconds, result.level_seconds) == (1.0, (("L2", 10.0), ("memory", 5.0)))
    assert (result.limited_by, result.seconds, result.rate) == ("L2", 10.0, 100.0)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_levels_get_faster_towards_the_arithmetic(chip):
    rates = [level.bandwidth for level in levels(chip)]
    assert rates == sorted(rates)
    assert len(rates) == (2 if chip is B200 else 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ridge(0, 1),
        lambda: ridge(1, 0),
        lambda: ridge(float("nan"), 1),
        lambda: attainable(0, 1, 1),
        lambda: attainable(1, 1, -1),
        lambda: tile_intensity(0, 1, 4),
        lambda: tile_intensity(1, 1, 4, 0),
        lambda: bound(-1, 1.0, {}),
        lambda: bound(1, 1.0, {Level("memory", 1.0): -1}),
        lambda: bound(1, 1.0, {Level("memory", 0.0): 1}),
    ],
)
def test_bad_input(call):
    with pytest.raises(ArgumentError):
        call()
