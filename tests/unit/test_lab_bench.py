"""A run of measurements on a scripted device: what is recorded, skipped, refused and found wrong."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from fake_bench import CONFIGS, FakeDevice, FakeYardstick, kernel_spec, only

from gemmule.core.chips import chip_named
from gemmule.core.errors import CompilerMissingError, DriverError, UnsupportedError
from gemmule.core.spec import Choice
from gemmule.lab.bench import Bench, BenchPlan
from gemmule.lab.products import gemm_problem

H100 = chip_named("h100")
FAST, SLOW = kernel_spec("fast", only("float32", "int8")), kernel_spec("slow")
SECONDS = {"fast": 1e-3, "slow": 4e-3, "y0": 1.1e-3, "y1": 0.9e-3, "y2": 2e-3}
#: What the design promises of a record of a product.
PROMISED = {
    "kernel", "config", "dtype", "precision", "out_dtype", "m", "n", "k", "layout", "batch", "chosen_by", "timing",
    "min_us", "mean_us", "median_us", "max_us", "samples_us", "tflops", "peak_share", "yardstick_first_us",
    "yardstick_best_us", "ratio", "error_u",
}  # fmt: skip


def run(
    specs=(FAST, SLOW), shape=(96, 80, 64), dtype="float32", layout="nn", device=None, refuses=None, yardstick=True
):
    device = device or FakeDevice(SECONDS)
    out = "int32" if dtype == "int8" else dtype
    problem = gemm_problem(*shape, dtype, out, layout)
    plan = BenchPlan((problem,), tuple(Choice(spec, spec.default) for spec in specs), warm_up_seconds=0.01)
    return list(Bench(plan, device, H100, FakeYardstick(device, refuses) if yardstick else None).records())


def kinds(records):
    return [(one["record"], one.get("kernel", one.get("library"))) for one in records]


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
    # The kernel, the yardstick's best and its first choice, and back.
    assert names[-6 * 25 :] == ["fast", "y1", "y0", "y0", "y1", "fast"] * 25
    assert "fast" not in names[: names.index("y1")]


def test_float64_is_held_against_both_peaks():
    record = run(specs=[SLOW], dtype="float64")[1]
    assert (record["peak_unit"], record["peak_tflops"], record["fma_tflops"]) == ("fp64_tensor", 66.9, 33.5)
    rate = 2 * 96 * 80 * 64 / 4e-3 / 1e12
    assert record["fma_share"] == round(rate / 33.5, 4)


def test_a_kernel_that_cannot_is_skipped_with_its_reason():
    records = run(layout="nt")
    assert kinds(records) == [("skipped", "fast"), ("yardstick", "cublaslt"), ("gemm", "slow")]
    assert records[0]["reason"] == "takes A and B in rows, not nt"
    assert (records[0]["m"], records[0]["layout"], records[0]["config"]) == (96, "nt", CONFIGS[0].as_dict())


def test_nothing_is_brought_to_the_device_where_no_kernel_can():
    device = FakeDevice(SECONDS)
    assert kinds(run(specs=[FAST], layout="tt", device=device)) == [("skipped", "fast")]
    assert device.sets == []


def test_operands_that_do_not_fit_are_skipped():
    records = run(device=FakeDevice(SECONDS, free=1000))
    assert kinds(records) == [("skipped", "fast"), ("skipped", "slow")]
    assert "GB of the GPU's memory are free" in records[0]["reason"]


def test_a_yardstick_that_refuses_is_absent_and_says_why():
    records = run(refuses="cuBLASLt does not take float32")
    assert kinds(records) == [("skipped", "cublaslt"), ("gemm", "fast"), ("gemm", "slow")]
    assert records[0]["reason"] == "cuBLASLt does not take float32"
    for one in records[1:]:
        assert not {"ratio", "yardstick_best_us", "yardstick_first_us", "paired_ratio"} & one.keys()
    assert kinds(run(yardstick=False)) == [("gemm", "fast"), ("gemm", "slow")]


def test_a_yardstick_that_fails_while_it_runs_is_absent_and_says_why():
    def fails():
        raise UnsupportedError("cuBLASLt does not run its own algorithm")

    records = run(device=FakeDevice(SECONDS | {"y2": fails}))
    assert kinds(records) == [("skipped", "cublaslt"), ("gemm", "fast"), ("gemm", "slow")]
    assert not any("ratio" in one for one in records)


def wrong(target, value, calls):
    target[...] = value
    target[0, 7] += 1


def not_everywhere(target, value, calls):
    target[:95] = value[:95]


def not_every_set(target, value, calls):
    if calls % 2:
        target[...] = value


def never_the_same(target, value, calls):
    target[...] = value
    target[3, 3] *= np.float32(1 + calls % 2 * 2**-20)


@pytest.mark.parametrize(
    ("spoil", "dtype", "reason"),
    [
        (wrong, "float32", "times the error bound away"),
        (wrong, "int8", "and should be"),
        (not_everywhere, "float32", "were not written, as (95, 0), (95, 1), (95, 2)"),
        (not_everywhere, "int8", "(95, 0) is"),
        (not_every_set, "float32", "two runs on the same inputs give different bits"),
        (never_the_same, "float32", "two runs on the same inputs give different bits"),
        (CompilerMissingError("the compiler is not installed"), "float32", "the compiler is not installed"),
        (DriverError("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "no"), "float32", "cuLaunchKernelEx failed"),
        (UnsupportedError("asks for 300000 bytes of shared memory a CTA"), "float32", "300000 bytes of shared memory"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_kernel_is_not_timed_and_claims_nothing(spoil, dtype, reason):
    device = FakeDevice(SECONDS, {"fast": spoil})
    records = run(dtype=dtype, device=device, shape=(96, 80, 65))
    assert kinds(records) == [("yardstick", "cublaslt"), ("check", "fast"), ("gemm", "slow")]
    failed = records[1]
    assert reason in failed["reason"]
    assert (failed["passed"], failed["failed"]) == (0, 1)
    assert not {"ratio", "median_us", "samples_us"} & failed.keys()
    assert "fast" not in [name for name, _, _ in device.log]


def test_a_device_that_broke_ends_the_run():
    class Broken(FakeDevice):
        def kernel(self, problem, choice, operands):
            self.free = None
            raise DriverError("cuLaunchKernelEx", "CUDA_ERROR_LAUNCH_FAILED", "no")

        def memory_free(self):
            if self.free is None:
                raise DriverError("cuMemGetInfo", "CUDA_ERROR_LAUNCH_FAILED", "no")
            return self.free

    with pytest.raises(DriverError, match="cuMemGetInfo"):
        run(device=Broken(SECONDS))


def test_names_that_the_driver_does_not_tell_are_no_reason_to_end_a_run():
    class Silent(FakeDevice):
        def kernel_names(self, work):
            raise DriverError("cuFuncGetName", "CUDA_ERROR_INVALID_HANDLE", "no")

    record = run(device=Silent(SECONDS))[0]
    assert "kernels" not in record
    assert record["kernels_unknown"].startswith("cuFuncGetName failed")


def test_rows_that_are_not_sampled_are_checked_as_written_for_integers_too():
    def skips_row_50(target, value, calls):
        keep = target[50].copy()
        target[...] = value
        target[50] = keep

    records = run(specs=[FAST], shape=(96, 8, 16), dtype="int8", device=FakeDevice(SECONDS, {"fast": skips_row_50}))
    assert "not written" in records[1]["reason"] or "(50, 0) is" in records[1]["reason"]


def test_the_device_is_loaded_for_seconds_before_the_first_figure_only():
    device = FakeDevice(SECONDS)
    problems = tuple(gemm_problem(64, 64, k, "float32", "float32", "nn") for k in (32, 64))
    plan = BenchPlan(problems, (Choice(SLOW, SLOW.default),), seconds=0.1)
    spent, marks = 0.0, []
    for record in Bench(plan, device, H100, None).records():
        now = sum(calls * SECONDS[name] for name, calls, _ in device.log)
        marks.append(now - spent)
        spent = now
        assert record["record"] == "gemm"
    assert marks[0] > 3 + 0.1
    assert marks[1] < 1


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
    (record,) = Bench(plan, device, None, None).records()
    assert not {"peak_share", "peak_unit"} & record.keys()
    assert record["tflops"] > 0
