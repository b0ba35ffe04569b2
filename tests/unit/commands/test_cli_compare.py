"""``gemmule compare``: the CPU, the kernels and the arithmetic of one product."""

from __future__ import annotations

import contextlib
import json

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.commands import gpu
from gemmule.core.chips import chip_named
from gemmule.core.errors import DriverError, UnsupportedError
from gemmule.lab.compare import on_the_host, theory
from gemmule.lab.products import gemm_problem
from gemmule.runtime import bench as runtime_bench
from support.fakes.bench import FakeDevice, kernel_spec, only
from support.fakes.laboratory import laboratory, no_gpu, one_gpu

__all__ = ["laboratory", "no_gpu", "one_gpu"]


def run(*arguments):
    return CliRunner().invoke(gemmule, ["compare", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _small_warm_up(laboratory):
    pass


@pytest.fixture
def device(laboratory, one_gpu):
    laboratory.register(kernel_spec("g01_naive", only("float32")))
    return laboratory.open(FakeDevice({"g01_naive": 2e-3, "gemm_reference": 1e-3, "y0": 1e-3, "y1": 0.9e-3}))


def test_the_theory_of_the_a100_mends_the_sources_arithmetic():
    found = theory(gemm_problem(4096, 4096, 4096, "float32", "float32", "nn"), chip_named("a100"))
    assert found["operations"] == 2 * 4096**3
    assert (found["unit"], found["unit_tflops"]) == ("fp32", 19.5)  # 156 TFLOP/s are TF32's
    assert found["compute_ms"] == pytest.approx(7.048, abs=1e-3)
    assert found["bytes_to_gpu"] + found["bytes_back"] == 3 * 4096**2 * 4
    assert found["memory_ms"] == pytest.approx(0.0987, abs=1e-4)
    assert found["to_gpu_ms"] == pytest.approx(4.194, abs=1e-3)  # over the host link, not over device memory
    assert found["verdict"] == "compute-bound"
    assert found["limited_from_host_by"] == "compute"
    small = theory(gemm_problem(100, 100, 100, "float32", "float32", "nn"), chip_named("h100"))
    assert (small["verdict"], small["limited_from_host_by"]) == ("memory-bound", "host link")


def test_the_cpu_is_timed_as_often_as_there_is_time():
    now = [0.0]

    def clock():
        now[0] += 0.7
        return now[0]

    problem = gemm_problem(20, 10, 30, "float32", "float32", "nn")
    host = on_the_host(problem, lambda a, b: a @ b, 0, clock)
    assert host["samples_ms"] == [700.0] * 5
    assert host["gflops"] == round(2 * 20 * 10 * 30 / 0.7 / 1e9, 2)
    assert host["rows"] == 20
    assert host["mean_squared_error"] < 1e-10
    assert "times the error bound" in on_the_host(problem, lambda a, b: 2 * (a @ b), 0, clock)["failure"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "int32"])
def test_without_a_gpu_the_cpu_and_the_theory(dtype, no_gpu):
    result = run(64, 48, 32, "--dtype", dtype)
    assert result.exit_code == 0, result.output
    for word in ("CPU: ", "least times on H100 SXM 80 GB", "host link, to the GPU", "device memory", "arithmetic units",
                 "-bound with operands in device memory"):  # fmt: skip
        assert word in result.stdout
    verdict = result.stdout.splitlines()[0]
    for word in (f"64 x 48 x 32, {dtype}: ", "FLOP/s; no NVIDIA GPU found, so no kernel was run", "-bound on H100 SXM"):
        assert word in verdict
    assert "WRONG" not in result.stdout
    found = json.loads(run(64, 48, 32, "--dtype", dtype, "--json").stdout)
    assert (found["gpu"], found["records"], found["link_measured"]) == (False, [], {})
    assert found["theory"]["chip"] == "H100 SXM 80 GB"
    assert found["host"]["median_ms"] > 0


def test_the_theory_of_another_chip(no_gpu):
    assert "PCIe 4.0" in run(64, 48, 32, "--chip", "a100").stdout
    result = run(64, 48, 32, "--chip", "h10")
    assert result.exit_code == 1
    assert result.stderr.startswith("gemmule: chip 'h10' is not in the table; did you mean H100")
    assert result.stderr.count("\n") == 1


def test_every_kernel_on_a_gpu(device):
    result = run(96, 80, 64)
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "0.450" in rows["g01_naive"]
    assert "0.900" in rows["gemm_reference"]
    assert "0.900" in rows["cuBLASLt"].split()
    assert "pinned, measured" in result.stdout
    verdict = result.stdout.splitlines()[0]
    assert verdict.startswith("96 x 80 x 64, float32: gemm_reference is the fastest kernel, ")
    assert "0.900 of cuBLASLt's rate; " in verdict
    found = json.loads(run(96, 80, 64, "--json").stdout)
    assert found["link_measured"] == {"to_gpu_gbps": 55.0, "back_gbps": 54.0}
    assert {one["record"] for one in found["records"]} == {"yardstick", "gemm"}


def test_kernels_that_cannot_say_why_and_wrong_ones_fail(device):
    assert "skipped: takes float32, not float64" in run(64, 48, 32, "--dtype", "float64").stdout

    def wrong(target, value, calls):
        target[...] = 0

    device.spoil["g01_naive"] = wrong
    result = run(64, 48, 32)
    assert result.exit_code == 1
    assert "g01_naive[tile_m=64 stages=2] 64 x 48 x 32 float32 nn is wrong" in result.stderr


def test_without_the_baselines_library_it_goes_on(monkeypatch, one_gpu):
    class Gpu:
        def cublaslt(self):
            raise UnsupportedError("nvmath-python is not installed")

    monkeypatch.setattr(runtime_bench, "bench_gpu", lambda: contextlib.nullcontext(Gpu()))
    with gpu.open_gpu(baseline=True, required=False) as (_, library):
        assert library is None
    with pytest.raises(UnsupportedError, match="nvmath"), gpu.open_gpu(baseline=True):
        pass


def test_a_link_that_cannot_be_measured_loses_nothing(device):
    def link_rates():
        raise DriverError("cuMemAllocHost", "CUDA_ERROR_OUT_OF_MEMORY", "no")

    device.link_rates = link_rates
    result = run(96, 80, 64)
    assert result.exit_code == 0, result.output
    assert "0.450" in result.stdout
    assert "the host link was not measured: cuMemAllocHost" in result.stderr
    assert "pinned, measured" not in result.stdout


def test_theory_that_there_is_not_is_told_before_anything_is_measured(device):
    result = run(64, 48, 32, "--dtype", "int8", "--chip", "v100")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert device.log == []


def test_small_times_keep_their_digits(no_gpu):
    lines = run(8, 8, 8).stdout.splitlines()
    (memory,) = [line for line in lines if line.lstrip().startswith("device memory")]
    assert float(memory.split()[-1]) == pytest.approx(3 * 8 * 8 * 4 / 3350e9 * 1e3, rel=0.01)


def test_chips_are_found_without_case_and_spaces(no_gpu):
    for name in ("RTX4090", "rtx-4090", "h100sxm"):
        assert run(8, 8, 8, "--chip", name).exit_code == 0


def test_bad_arguments(no_gpu):
    huge = run(99999999999, 99999999999, 99999999999)
    assert huge.exit_code == 1
    assert "GB of the host's memory" in huge.stderr
    assert run(0, 1, 1).exit_code == 2
    assert run(1, 1).exit_code == 2
    assert "did you mean gemm_reference" in run(8, 8, 8, "--kernels", "gemm_refrence").stderr
    assert "did you mean float32" in run(8, 8, 8, "--dtype", "flot32").stderr
