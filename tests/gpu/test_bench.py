"""``gemmule bench`` and ``gemmule compare`` on a GPU, and cuBLASLt as the baseline."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from gemmule.core.errors import UnsupportedError
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.accuracy import accuracy, reference, sampled_rows
from gemmule.lab.products import LAYOUTS, MEASURED_DTYPES, gemm_problem, output_type, random_inputs
from gemmule.lab.records import read_records
from gemmule.runtime.bench import bench_gpu

REFERENCE = next(spec for spec in REGISTRY if spec.name == "gemm_reference")
HAS_BASELINE = importlib.util.find_spec("nvmath") is not None
needs_baseline = pytest.mark.skipif(not HAS_BASELINE, reason="nvmath-python is not installed")
BASELINE = () if HAS_BASELINE else ("--no-baseline",)


def run(*arguments):
    command = [sys.executable, "-m", "gemmule", *map(str, arguments), *BASELINE]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_short_bench_and_its_record(tmp_path):
    done = run("bench", "gemm", "--kernels", "gemm_reference", "--sizes", "128,96,64", "--sizes", "1000,999,257",
               "--seconds", "0.2", "--record", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gemm_reference" in done.stdout
    (path,) = tmp_path.iterdir()
    experiment, *records = read_records(path)
    assert experiment["gpu"]
    assert experiment["l2_bytes"] > 1 << 20
    assert experiment["cuda"]
    kinds = [one["record"] for one in records]
    assert kinds == (["yardstick", "gemm"] if HAS_BASELINE else ["gemm"]) * 2
    for one in records:
        assert one["min_us"] <= one["median_us"] <= one["max_us"]
        assert one["buffer_bytes"] >= 3 * experiment["l2_bytes"] or one["buffer_sets"] == 2048
        assert one["error_over_bound"] <= 1
        assert one["rms_over_bound"] <= 1
        if one["record"] == "gemm" and HAS_BASELINE:
            assert one["ratio"] > 0
            assert one["yardstick_best_us"] <= one["yardstick_first_us"]
        if one["record"] == "yardstick":
            assert one["kernels"]
            assert len(one["algorithms"]) >= 1
            assert not any("tf32" in name.lower() for name in one["kernels"])
    shown = run_show(path)
    assert shown.returncode == 0, shown.stderr
    assert "1000 x 999 x 257, float32, nn" in shown.stdout


def run_show(path):
    command = [sys.executable, "-m", "gemmule", "bench", "show", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_comparison():
    done = run("compare", 300, 200, 100, "--kernels", "gemm_reference", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gpu"]
    assert found["link_measured"]["to_gpu_gbps"] > 1
    assert [one["kernel"] for one in found["records"] if one["record"] == "gemm"] == ["gemm_reference"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", MEASURED_DTYPES)
@needs_baseline
def test_the_yardstick_computes_the_product_or_says_why_not(dtype, layout):
    problem = gemm_problem(272, 144, 320, dtype, output_type(dtype, None), layout)
    inputs = random_inputs(problem, 0)
    expected = reference(problem, inputs, sampled_rows(problem.m, 0))
    with bench_gpu() as gpu, gpu.cublaslt() as library, gpu.operands(problem, inputs, 2) as operands:
        try:
            with library.algorithms(problem, operands) as algorithms:
                for algorithm in algorithms:
                    operands.poison(0xFF)
                    algorithm.work(), algorithm.work()
                    for index in range(2):
                        right = accuracy(expected, operands.output(index))
                        # Sums of 8-bit floats keep fewer bits in cuBLAS than the bound is made for, and sums that
                        # were split may be added in the output's type.
                        few = problem.d.dtype.itemsize < 4
                        over = max(right.over_bound, right.rms_over_bound)
                        assert over <= (2048 if dtype.startswith("float8") else 20 if few else 1), right.failure
                    assert algorithm.description["id"] >= 0
                assert gpu.kernel_names(algorithms[0].work)
        except UnsupportedError as error:
            refused = str(error)
        else:
            return
    assert dtype.startswith(("float8", "int")), refused
    pytest.skip(refused)


@pytest.mark.parametrize("graph", [False, True])
def test_the_stopwatch_runs_every_call(graph):
    """Samples of several calls write every buffer set, captured or not."""
    problem = gemm_problem(65, 70, 33, "float32", "float32", "nn")
    inputs = random_inputs(problem, 0)
    expected = reference(problem, inputs, sampled_rows(problem.m, 0))
    with bench_gpu() as gpu, gpu.operands(problem, inputs, 3) as operands:
        work = gpu.kernel(problem, Choice(REFERENCE, REFERENCE.default), operands)
        work()
        with gpu.stopwatch(work, 6, graph=graph) as watch:
            operands.poison(0xFF)
            assert 0 < watch.queue()() < 1
            for index in range(3):
                assert accuracy(expected, operands.output(index)).failure is None
        assert gpu.kernel_names(work) == ["gemm_reference_0"]
        assert min(gpu.link_rates()) > 1e9
