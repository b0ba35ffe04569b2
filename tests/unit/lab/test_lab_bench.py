"""A run of measurements on a scripted device: what is recorded, skipped, refused and found wrong."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import pytest

from gemmule.core.dtype import Precision
from gemmule.core.errors import DriverError
from gemmule.core.spec import Choice
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.gemm_bench import GemmBench
from gemmule.lab.products import gemm_problem
from support.fakes.bench import CONFIGS, FakeDevice
from support.fakes.laboratory import laboratory
from support.fakes.scripted_runs import FAST, H100, SECONDS, SLOW, kinds, run

__all__ = ["laboratory"]

#: What the design promises of a record of a product.
PROMISED = {
    "kernel", "config", "dtype", "precision", "out_dtype", "m", "n", "k", "layout", "batch", "chosen_by", "timing",
    "min_us", "mean_us", "median_us", "max_us", "samples_us", "tflops", "peak_share", "yardstick_first_us",
    "yardstick_best_us", "ratio", "error_u",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small_warm_up(laboratory):
    pass


def test_the_fields_that_the_design_promises():
    records = run()
    assert kinds(records) == [("yardstick", "cublaslt"), ("gemm", "fast"), ("gemm", "slow")]
    fast = records[1]
    assert fast.keys() >= PROMISED
    assert (fast["config"], fast["chosen_by"], fast["timing"]) == (CONFIGS[0].as_dict(), "rung", "events")
    assert (fast["m"], fast["n"], fast["k"], fast["layout"], fast["batch"]) == (96, 80, 64, "nn", [])
    assert (fast["min_us"], fast["mean_us"], fast["median_us"], fast["max_us"]) == (1000, 1000, 1000, 1000)
    assert len(fast["samples_us"]) == 50
    flop = 2 * 96 * 80 * 64
    assert fast["tflops"] == round(flop / 1e-3 / 1e12, 4)
    assert (fast["peak_unit"], fast["peak_tflops"]) == ("fp32", 66.9)
    assert (fast["yardstick_first_us"], fast["yardstick_best_us"]) == (1100, 900)
    assert fast["ratio"] == fast["paired_ratio"] == 0.9
    assert records[2]["ratio"] == pytest.approx(0.225)
    assert (fast["clock_mhz"], fast["power_w"]) == (1700, 600.5)
    assert fast["buffer_bytes"] >= 3 * FakeDevice.l2_bytes
    assert 0 < fast["error_u"] < 10


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_complex_products_are_four_real_ones(dtype, layout):
    """Errors are those of the parts, each a sum of twice as many products."""
    _, slow = run([SLOW], shape=(30, 20, 40), dtype=dtype, layout=layout)
    assert slow["tflops"] == round(8 * 30 * 20 * 40 / 4e-3 / 1e12, 4)
    assert slow["peak_unit"] == ("fp32" if dtype == "complex64" else "fp64_tensor")
    assert 0 < slow["error_u"] < 10


def test_the_yardstick_is_its_best_algorithm_and_is_held_against_itself():
    record = run()[0]
    assert (record["best_is"], record["first_us"], record["best_us"]) == (1, 1100, 900)
    assert [one["median_us"] for one in record["algorithms"]] == [1100, 900, 2000]
    assert record["algorithms"][1]["tile"] == "tile_y1"
    assert record["kernels"] == ["device_y1"]
    assert (record["control"], record["control_low"], record["control_high"]) == (1, 1, 1)


def test_a_control_that_is_off_shows():
    rng = np.random.default_rng(0)
    record = run(device=FakeDevice(SECONDS | {"y1": lambda: 0.9e-3 * (1 + rng.exponential(0.1))}))[0]
    assert record["control_low"] < 0.95 < 1.05 < record["control_high"]


def test_the_order_of_one_measurement():
    device = FakeDevice(SECONDS)
    run(specs=[FAST], device=device)
    names = [name for name, _, _ in device.log]
    # The kernel, the baseline's best and its top heuristic, and back.
    assert names[-6 * 25 :] == ["fast", "y1", "y0", "y0", "y1", "fast"] * 25
    assert "fast" not in names[: names.index("y1")]


def test_float64_is_held_against_both_peaks():
    record = run(specs=[SLOW], dtype="float64")[1]
    assert (record["peak_unit"], record["peak_tflops"], record["fma_tflops"]) == ("fp64_tensor", 66.9, 33.5)
    rate = 2 * 96 * 80 * 64 / 4e-3 / 1e12
    assert record["fma_share"] == round(rate / 33.5, 4)


def test_nothing_is_brought_to_the_device_where_no_kernel_can():
    device = FakeDevice(SECONDS)
    assert kinds(run(specs=[FAST], layout="tt", device=device)) == [("skipped", "fast")]
    assert device.sets == []


def test_the_best_beside_a_kernel_is_the_faster_one_there():
    slower = iter([0.9e-3] * 12 + [1.3e-3] * 10**5)
    fast = run(specs=[FAST], device=FakeDevice(SECONDS | {"y1": lambda: next(slower)}))[1]
    assert fast["yardstick_best_us"] == fast["yardstick_first_us"] == 1100
    assert fast["yardstick_best_is"] == 0
    assert fast["yardstick_best_samples_us"] == fast["yardstick_first_samples_us"] == [1100] * 50
    assert fast["ratio"] == fast["paired_ratio"] == 1.1


def test_algorithms_are_surveyed_in_three_rounds_at_least():
    device = FakeDevice(dict.fromkeys(("fast", "y0", "y1", "y2"), 2.0))
    run(specs=[FAST], device=device)
    names = [name for name, _, _ in device.log]
    assert ["y0", "y1", "y2", "y2", "y1", "y0"] * 3 in [names[i : i + 18] for i in range(len(names))]


def test_raw_samples_and_kernels_of_the_yardstick_are_recorded():
    baseline, fast, _ = run()
    assert baseline["samples_us"] == baseline["control_samples_us"] == [900] * 50
    assert (baseline["kernels"], baseline["first_kernels"]) == (["device_y1"], ["device_y0"])
    assert fast["yardstick_best_samples_us"] == [900] * 50
    assert fast["yardstick_first_samples_us"] == [1100] * 50


def test_the_load_before_the_first_figure_has_the_precision_of_the_products():
    first = dataclasses.replace(gemm_problem(96, 80, 64, "float32", "float32", "nn"), precision=Precision.TF32)
    asked = []

    def chosen(problem):
        asked.append(problem.precision)
        return Choice(FAST, FAST.default)

    list(
        GemmBench(
            BenchPlan((first,), (), warm_up_seconds=0.01, chosen=chosen), FakeDevice(SECONDS), H100, None
        ).records()
    )
    assert asked == [Precision.TF32] * 2


def test_names_that_the_driver_does_not_tell_are_no_reason_to_end_a_run():
    class Silent(FakeDevice):
        def kernel_names(self, work):
            raise DriverError("cuFuncGetName", "CUDA_ERROR_INVALID_HANDLE", "no")

    record = run(device=Silent(SECONDS))[0]
    assert "kernels" not in record
    assert record["kernels_unknown"].startswith("cuFuncGetName failed")


def test_the_device_is_loaded_for_seconds_before_the_first_figure_only():
    device = FakeDevice(SECONDS)
    problems = tuple(gemm_problem(64, 64, k, "float32", "float32", "nn") for k in (32, 64))
    plan = BenchPlan(problems, (Choice(SLOW, SLOW.default),), seconds=0.1)
    spent, marks = 0.0, []
    for record in GemmBench(plan, device, H100, None).records():
        now = sum(calls * SECONDS[name] for name, calls, _ in device.log)
        marks.append(now - spent)
        spent = now
        assert record["record"] == "gemm"
    assert marks[0] > 3 + 0.1
    assert marks[1] < 1


def test_the_load_before_the_first_figure_is_a_large_product(laboratory):
    seen = []

    class Watched(FakeDevice):
        def operands(self, problem, inputs, sets):
            seen.append((problem.m, problem.n, problem.k, problem.layout, sum(c for _, c, _ in self.log)))
            return super().operands(problem, inputs, sets)

    laboratory.warm_up(128)
    device = Watched(SECONDS)
    run(shape=(16, 16, 16), device=device)
    assert [one[:4] for one in seen] == [(128, 128, 128, "nn"), (16, 16, 16, "nn")]
    assert seen[1][4] > 0
    assert device.log[0][0] == "y0"


def test_the_device_is_loaded_again_after_a_pause():
    def spent(pause):
        device, now = FakeDevice(SECONDS), iter(range(10**6))
        problem = gemm_problem(64, 64, 64, "float32", "float32", "nn")
        plan = BenchPlan((problem,), (Choice(SLOW, SLOW.default),), warm_up_seconds=0.01)
        list(GemmBench(plan, device, H100, None, clock=lambda: pause * next(now)).records())
        return sum(calls * SECONDS[name] for name, calls, _ in device.log)

    assert spent(0.6) - spent(0.1) == pytest.approx(0.2, abs=0.02)


def test_samples_that_scatter_are_summed_up():
    values = iter([1e-3 * (1 + 0.01 * (index % 7)) for index in range(10**5)])
    record = run(specs=[SLOW], device=FakeDevice(SECONDS | {"slow": lambda: next(values)}))[1]
    samples = record["samples_us"]
    assert record["median_us"] == pytest.approx(statistics.median(samples), abs=1e-3)
    assert record["min_us"] == min(samples)
    assert record["max_us"] == max(samples)
    assert record["paired_ratio_low"] <= record["paired_ratio"] <= record["paired_ratio_high"]
    assert record["ratio"] == pytest.approx(record["yardstick_best_us"] / record["median_us"], abs=1e-4)


def test_a_chip_that_is_not_known_gives_no_shares():
    device = FakeDevice(SECONDS)
    problem = gemm_problem(64, 64, 64, "float32", "float32", "nn")
    plan = BenchPlan((problem,), (Choice(SLOW, SLOW.default),), warm_up_seconds=0.01)
    (record,) = GemmBench(plan, device, None, None).records()
    assert not {"peak_share", "peak_unit"} & record.keys()
    assert record["tflops"] > 0
