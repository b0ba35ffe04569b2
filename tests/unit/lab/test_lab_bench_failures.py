"""Kernels and baselines that fail or are wrong in a run of measurements: what is recorded instead of times."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.errors import CompileError, CompilerMissingError, DriverError, UnsupportedError
from gemmule.core.spec import Choice
from gemmule.lab.bench_plan import BenchPlan
from gemmule.lab.gemm_bench import GemmBench
from gemmule.lab.products import gemm_problem
from support.fakes.bench import CONFIGS, FakeBaseline, FakeDevice
from support.fakes.laboratory import laboratory
from support.fakes.scripted_runs import FAST, H100, SECONDS, SLOW, kinds, run

__all__ = ["laboratory"]

#: With a small load before the first figure.
pytestmark = pytest.mark.usefixtures("laboratory")


def test_a_kernel_that_cannot_is_skipped_with_its_reason():
    records = run(layout="nt")
    assert kinds(records) == [("skipped", "fast"), ("yardstick", "cublaslt"), ("gemm", "slow")]
    assert records[0]["reason"] == "takes A and B in rows, not nt"
    assert (records[0]["m"], records[0]["layout"], records[0]["config"]) == (96, "nt", CONFIGS[0].as_dict())


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
    assert kinds(run(baseline=False)) == [("gemm", "fast"), ("gemm", "slow")]


def test_a_yardstick_that_fails_while_it_runs_is_absent_and_says_why():
    def fails():
        raise UnsupportedError("cuBLASLt does not run its own algorithm")

    records = run(device=FakeDevice(SECONDS | dict.fromkeys(("y0", "y1", "y2"), fails)))
    assert kinds(records) == [("skipped", "cublaslt"), ("gemm", "fast"), ("gemm", "slow")]
    assert records[0]["reason"] == "cuBLASLt does not run its own algorithm"
    assert not any("ratio" in one for one in records)


@pytest.mark.parametrize("broken", ["y0", "y1", "y2"])
def test_an_algorithm_that_does_not_run_leaves_the_others(broken):
    def fails():
        raise UnsupportedError("cuBLASLt does not run its own algorithm")

    baseline, fast, _ = run(device=FakeDevice(SECONDS | {broken: fails}))
    refused = [one.get("refused") for one in baseline["algorithms"]]
    assert [reason is not None for reason in refused] == [f"y{number}" == broken for number in range(3)]
    assert baseline["best_is"] == (0 if broken == "y1" else 1)
    assert ("first_us" in baseline) == ("yardstick_first_us" in fast) == (broken != "y0")
    assert fast["yardstick_best_us"] == (1100 if broken == "y1" else 900)


@pytest.mark.parametrize("spoiled", ["y0", "y1"])
def test_an_algorithm_that_is_wrong_is_no_baseline(spoiled):
    baseline, fast, _ = run(device=FakeDevice(SECONDS, {spoiled: wrong}))
    assert "times the error bound" in baseline["algorithms"][int(spoiled[1])]["failure"]
    assert "failure" not in baseline
    assert baseline["best_is"] == fast["yardstick_best_is"] == (1 if spoiled == "y0" else 0)
    assert ("first_us" in baseline) == ("yardstick_first_us" in fast) == (spoiled != "y0")
    records = run(device=FakeDevice(SECONDS, dict.fromkeys(("y0", "y1", "y2"), wrong)))
    assert kinds(records) == [("skipped", "cublaslt"), ("gemm", "fast"), ("gemm", "slow")]
    assert "no algorithm of the baseline is right" in records[0]["reason"]


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


def wrong_once_it_is_timed(target, value, calls):
    target[...] = value
    if calls > 200:
        target[0, 7] += 1


def nothing_once_it_is_timed(target, value, calls):
    if calls < 200:
        target[...] = value


@pytest.mark.parametrize(
    ("spoil", "dtype", "reason"),
    [
        (wrong, "float32", "times the error bound away"),
        (wrong, "int8", "and should be"),
        (not_everywhere, "float32", "were not written, as (95, 0), (95, 1), (95, 2)"),
        (not_everywhere, "int8", "elements were not written"),
        (not_every_set, "float32", "two runs on the same inputs give different bits"),
        (never_the_same, "float32", "two runs on the same inputs give different bits"),
        (wrong_once_it_is_timed, "float32", "the calls that were timed give other bits"),
        (nothing_once_it_is_timed, "float32", "the calls that were timed give other bits"),
        (nothing_once_it_is_timed, "int8", "the calls that were timed give other bits"),
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
    if "timed" not in reason:
        assert "fast" not in [name for name, _, _ in device.log]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DriverError("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "no"), "failed"),
        (DriverError("cuModuleLoadData", "CUDA_ERROR_OUT_OF_MEMORY", "no"), "skipped"),
        (CompileError("does not compile"), "failed"),
        (UnsupportedError("asks for 300000 bytes of shared memory a CTA"), "skipped"),
    ],
    ids=str,
)
def test_a_kernel_that_gives_no_result_is_not_called_wrong(error, kind):
    records = run(device=FakeDevice(SECONDS, {"fast": error}))
    assert kinds(records) == [("yardstick", "cublaslt"), (kind, "fast"), ("gemm", "slow")]
    assert records[1]["reason"] == str(error)


def test_a_missing_compiler_ends_the_run_before_the_first_record():
    problem = gemm_problem(96, 80, 64, "float32", "float32", "nn")
    plan = BenchPlan((problem,), (Choice(SLOW, SLOW.default), Choice(FAST, FAST.default)), warm_up_seconds=0.01)
    device = FakeDevice(SECONDS, {"fast": CompilerMissingError("the compiler is not installed")})
    records = GemmBench(plan, device, H100, None).records()
    with pytest.raises(CompilerMissingError, match="the compiler is not installed"):
        next(records)
    assert device.log == []


def test_what_a_call_would_run_and_no_pack_has_fails_at_its_product_and_the_run_goes_on():
    """The load before the first figure is no reason to end a run either."""
    small, large = (gemm_problem(96, 80, k, "float32", "float32", "nn") for k in (64, 72))
    asked = []

    def chosen(problem):
        asked.append(problem)
        return Choice(*((SLOW, SLOW.default) if problem.k == 72 else (FAST, FAST.default)))

    plan = BenchPlan((small, large), (), warm_up_seconds=0.01, chosen=chosen)
    device = FakeDevice(SECONDS, {"fast": CompilerMissingError("the compiler is not installed")})
    *_, lacks, has = GemmBench(plan, device, H100, None).records()
    # What the load would run, too.
    assert len(asked) == 3
    assert (lacks["record"], lacks["kernel"], lacks["reason"]) == ("failed", "fast", "the compiler is not installed")
    assert (has["record"], has["kernel"], has["chosen_by"]) == ("gemm", "slow", "dispatch")


def test_operands_that_the_driver_has_no_memory_for_are_skipped():
    class Full(FakeDevice):
        def operands(self, problem, inputs, sets):
            if problem.m == 96:
                raise DriverError("cuMemAllocAsync", "CUDA_ERROR_OUT_OF_MEMORY", "no")
            return super().operands(problem, inputs, sets)

    records = run(device=Full(SECONDS))
    assert kinds(records) == [("skipped", "fast"), ("skipped", "slow")]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in records[0]["reason"]


@pytest.mark.parametrize("shape", [(96, 80, 64), (1024, 1024, 16)])
def test_every_kernel_runs_twice_before_it_is_believed(shape):
    seen = []

    def counts(target, value, calls):
        seen.append(calls)
        target[...] = value

    device = FakeDevice(SECONDS, {"fast": counts})
    run(specs=[FAST], shape=shape, device=device, baseline=False)
    assert device.sets[-1] == (1 if shape[0] == 1024 else 42)
    device = FakeDevice(SECONDS, {"fast": never_the_same})
    assert "different bits" in run(specs=[FAST], shape=shape, device=device)[1]["reason"]


def test_a_device_that_broke_ends_the_run():
    class Broken(FakeDevice):
        def kernel(self, problem, choice, operands):
            self.free = None
            raise DriverError("cuLaunchKernelEx", "CUDA_ERROR_LAUNCH_FAILED", "no")

        def memory_free(self):
            if self.free is None:
                raise DriverError("cuMemGetInfo", "CUDA_ERROR_LAUNCH_FAILED", "no")
            return self.free

    device = Broken(SECONDS)
    problem = gemm_problem(96, 80, 64, "float32", "float32", "nn")
    plan = BenchPlan((problem,), (Choice(FAST, FAST.default),), warm_up_seconds=0.01)
    found = []
    with pytest.raises(DriverError, match=r"cuLaunchKernelEx failed .*fast\[.*\] 64 x 64 x 64 .* broke the GPU"):
        found.extend(GemmBench(plan, device, H100, None).records())
    assert kinds(found) == [("check", "fast")]
    assert "CUDA_ERROR_LAUNCH_FAILED" in found[0]["reason"]


@pytest.mark.parametrize(
    "error", [None, UnsupportedError("cuBLASLt does not run its own algorithm")], ids=["", "short"]
)
@pytest.mark.parametrize("warm_up", [True, False])
def test_a_baseline_that_broke_the_device_is_to_blame(warm_up, error):
    class Broken(FakeDevice):
        def memory_free(self):
            if self.free is None:
                raise DriverError("cuMemGetInfo", "CUDA_ERROR_ILLEGAL_ADDRESS", "no")
            return self.free

    def breaks():
        # The load before the first figure is of another product.
        if warm_up or len(device.sets) > 1:
            device.free = None
            raise error or DriverError("cuEventSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "no")
        return 1e-3

    device, found = Broken(SECONDS | dict.fromkeys(("y0", "y1", "y2"), breaks)), []
    problem = gemm_problem(96, 80, 64, "float32", "float32", "nn")
    plan = BenchPlan((problem,), (Choice(FAST, FAST.default),), warm_up_seconds=0.01)
    with pytest.raises(DriverError, match=r"cublaslt \d+ x .* broke the GPU"):
        found.extend(GemmBench(plan, device, H100, FakeBaseline(device)).records())
    assert kinds(found) == [("check", "cublaslt")]
    assert found[0]["m"] == (64 if warm_up else 96)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in found[0]["reason"]


def test_rows_that_are_not_sampled_are_checked_as_written_for_integers_too():
    def skips_row_50(target, value, calls):
        keep = target[50].copy()
        target[...] = value
        target[50] = keep

    records = run(specs=[FAST], shape=(96, 8, 16), dtype="int8", device=FakeDevice(SECONDS, {"fast": skips_row_50}))
    assert "not written" in records[1]["reason"] or "(50, 0) is" in records[1]["reason"]
