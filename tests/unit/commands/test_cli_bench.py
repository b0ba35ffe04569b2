"""``gemmule bench``: what is printed, recorded, drawn and refused, on a scripted device and without a GPU."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.commands import bench, gpu
from gemmule.core.errors import CompileError, CompilerMissingError, DriverError, UnsupportedError
from gemmule.lab import plots
from gemmule.lab.drawing import canvas
from gemmule.lab.records import read_records
from support.fakes.bench import FakeDevice, kernel_spec, only
from support.fakes.laboratory import laboratory, no_gpu, one_gpu

__all__ = ["laboratory", "no_gpu", "one_gpu"]

SPECS = (kernel_spec("g01_naive", only("float32")), kernel_spec("d02_in_registers", only("float64")))
SECONDS = {"g01_naive": 2e-3, "d02_in_registers": 2e-3, "y0": 1e-3, "y1": 0.9e-3}


def run(*arguments):
    return CliRunner().invoke(gemmule, ["bench", *map(str, arguments)])


def refused(*arguments, code=1):
    """Run what must fail with one line on stderr, and return the line."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("gemmule: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(autouse=True)
def _kernels(laboratory):
    laboratory.register(*SPECS)


@pytest.fixture
def device(laboratory):
    return laboratory.open(FakeDevice(dict(SECONDS)))


QUICK = ("--seconds", "0.01", "--sizes", "32,24,16", "--sizes", "64,64,16")
LADDER = (*QUICK, "--kernels", "ladder")


def test_the_table_of_each_size_and_the_ratios_of_all(device):
    result = run("gemm", *LADDER)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    for word in (
        "32 x 24 x 16, float32, nn",
        "64 x 64 x 16, float32, nn",
        "speed-up over cuBLASLt (more than 1 is faster)",
    ):
        assert word in [line.rstrip() for line in lines]
    (header, *_) = [line for line in lines if "GFLOP/s" in line]
    for name in ("min us", "mean us", "median us", "max us", "of peak", "vs cuBLASLt"):
        assert name in header
    rows = [line.split() for line in lines if line.startswith((" g01_naive", "g01_naive"))]
    assert rows[0][1:5] == ["2000.0"] * 4
    assert "0.450" in rows[0]
    assert "fastest kernels over cuBLASLt's best of 8: 0.450 (geometric mean of 2 products), at least 0.450" in lines
    assert not any("d02" in line for line in lines)  # a rung for another type
    assert result.stderr == ""  # no progress where there is no terminal


def test_kernels_that_cannot_stand_in_the_table_with_their_reason(device):
    result = run("gemm", *QUICK, "--kernels", "all")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("skipped: takes float64, not float32") == 2
    result = run("gemm", *QUICK, "--kernels", "g01_naive", "--layout", "tn")
    assert "skipped: takes A and B in rows, not tn" in result.stdout
    assert result.exit_code == 0


def test_products_of_another_precision_say_so(device):
    result = run("gemm", *LADDER, "--precision", "bf16x6")
    assert result.exit_code == 0
    assert "32 x 24 x 16, float32 as bf16x6, nn" in result.stdout
    records = json.loads(run("gemm", *LADDER, "--precision", "bf16x6", "--json").stdout)["records"]
    assert {record["precision"] for record in records} == {"bf16x6"}


def test_json_is_one_object(device):
    result = run("gemm", *LADDER, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["experiment"]["command"] == "gemmule bench gemm " + " ".join(LADDER) + " --json"
    assert found["experiment"]["cublaslt"] == "13.1.0"
    assert [record["record"] for record in found["records"]] == ["yardstick", "gemm"] * 2


def test_the_record_has_the_experiment_first_and_no_absolute_paths(device, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = run("gemm", *QUICK, "--record", tmp_path / "results", f"--plot={tmp_path / 'plots'}", "--kernels", "all")
    (path,) = (tmp_path / "results").iterdir()
    assert f"record: {path}" in result.stdout
    experiment, *records = read_records(path)
    assert experiment["record"] == "experiment"
    assert "--record results --plot=plots" in experiment["command"]
    assert str(tmp_path) not in path.read_text()
    assert {record["record"] for record in records} == {"yardstick", "gemm", "skipped"}
    assert result.stderr.startswith("no plot:")  # only one size has M = N
    assert result.exit_code == 0


def test_plots_of_the_run_and_of_a_record(device, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    sizes = (*LADDER[:2], "--sizes", "32,32,16", "--sizes", "64,64,16", "--sizes", "96,96,16", "--kernels", "ladder")
    result = run("gemm", *sizes, "--plot", tmp_path / "plots", "--record", tmp_path / "results")
    assert result.exit_code == 0, result.output
    assert sorted(path.suffix for path in (tmp_path / "plots").iterdir()) == [".png", ".svg"]
    (record,) = (tmp_path / "results").iterdir()
    shown = run("show", record, "--plot", tmp_path / "again")
    assert shown.exit_code == 0, shown.output
    svgs = [next((tmp_path / folder).glob("*.svg")).read_text() for folder in ("plots", "again")]
    assert svgs[0] == svgs[1]


def test_show_prints_what_the_run_printed(device, tmp_path, no_gpu):
    printed = run("gemm", *LADDER, "--record", tmp_path).stdout
    (record,) = tmp_path.iterdir()
    shown = run("show", record)
    assert shown.exit_code == 0, shown.output
    tables = printed[: printed.index("record: ")]
    assert tables in shown.stdout
    assert "NVIDIA" in shown.stdout or "CPUs" in shown.stdout


def test_float64_shows_the_peak_without_tensor_cores(device):
    result = run("gemm", *LADDER, "--dtype", "float64")
    assert "of FMA peak" in result.stdout
    assert "d02_in_registers" in result.stdout


def test_a_wrong_kernel_makes_the_command_fail_and_claims_nothing(device, tmp_path):
    def wrong(target, value, calls):
        target[...] = value * 1.5

    device.spoil["g01_naive"] = wrong
    result = run("gemm", *LADDER, "--record", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "g01_naive[tile_m=64 stages=2] 32 x 24 x 16 float32 nn is wrong and was not timed" in result.stderr
    assert "; 1 more is wrong" in result.stderr
    assert "WRONG: (" in result.stdout
    (path,) = tmp_path.iterdir()
    assert [record["record"] for record in read_records(path)] == ["experiment", *["yardstick", "check"] * 2]


def test_a_run_that_is_interrupted_says_where_its_figures_are(device, tmp_path):
    count = iter(range(1000))

    def seconds():
        if next(count) > 80:
            raise KeyboardInterrupt
        return 2e-3

    device.seconds["g01_naive"] = seconds
    result = run("gemm", *LADDER, "--seconds", "1", "--record", tmp_path)
    assert result.exit_code == 130
    (left,) = tmp_path.iterdir()
    assert result.stderr == f"gemmule: interrupted; partial results are in {left}\n"
    assert [one["record"] for one in read_records(left)] == ["experiment", "yardstick", "gemm", "yardstick"]


def test_a_kernel_that_does_not_compile_makes_the_command_fail_and_is_not_called_wrong(device):
    device.spoil["g01_naive"] = CompileError("does not compile")
    result = run("gemm", *LADDER)
    assert result.exit_code == 1
    assert "failed: does not compile" in result.stdout
    assert "32 x 24 x 16 float32 nn failed and was not timed: does not compile; 1 more failed" in result.stderr
    assert "wrong" not in (result.stdout + result.stderr).lower()


def test_a_missing_compiler_says_so_and_what_to_do(device, tmp_path):
    device.spoil["g01_naive"] = CompilerMissingError("the compiler is not installed; run: pip install it")
    result = run("gemm", *LADDER, "--record", tmp_path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("gemmule: the compiler is not installed; run: pip install it")
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".partial"


def test_a_kernel_that_breaks_the_gpu_is_named_and_the_record_is_kept(device, tmp_path, laboratory):
    def breaks(problem, choice, operands):
        def memory_free():
            raise DriverError("cuMemGetInfo", "CUDA_ERROR_ILLEGAL_ADDRESS", "no")

        device.memory_free = memory_free
        raise DriverError("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal address")

    laboratory.warm_up(1 << 20)  # does not fit
    device.kernel = breaks
    result = run("gemm", *LADDER, "--record", tmp_path)
    assert result.exit_code == 1
    (left,) = tmp_path.iterdir()
    assert "cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS" in result.stderr
    assert "g01_naive[tile_m=64 stages=2] 32 x 24 x 16 float32 nn broke the GPU" in result.stderr
    assert f"partial results are in {left}" in result.stderr
    assert [one["record"] for one in read_records(left)] == ["experiment", "yardstick", "check"]


def test_a_plot_that_cannot_be_drawn_is_told_before_anything_is_measured(device, tmp_path, monkeypatch):
    def missing():
        raise UnsupportedError("plots need matplotlib")

    monkeypatch.setattr(canvas, "check_matplotlib", missing)
    assert "plots need matplotlib" in refused("gemm", *LADDER, "--plot", tmp_path)
    assert device.log == []


def test_a_wrong_kernel_fails_the_command_even_where_drawing_fails(device, tmp_path, monkeypatch):
    def wrong(target, value, calls):
        target[...] = value * 1.5

    def fails(*arguments):
        raise OSError("no space")

    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(plots, "plots", fails)
    device.spoil["g01_naive"] = wrong
    result = run("gemm", *LADDER, "--plot", tmp_path)
    assert result.exit_code == 1
    assert "no plot: no space\n" in result.stderr
    assert "is wrong and was not timed" in result.stderr


@pytest.mark.parametrize(
    "name", ["NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY"]
)
def test_variables_that_change_the_yardstick_are_refused(name, monkeypatch, one_gpu):
    monkeypatch.setenv(name, "1")
    with pytest.raises(UnsupportedError, match=f"{name} may change how cuBLAS computes"), gpu.open_gpu(baseline=True):
        pass


def test_no_yardstick_no_ratio(device):
    result = run("gemm", *LADDER, "--no-baseline")
    assert result.exit_code == 0
    assert "cuBLASLt" not in result.stdout
    assert "0.450" not in result.stdout


def test_without_a_gpu_it_says_what_works(no_gpu):
    line = refused("gemm")
    assert "no NVIDIA GPU found; " in line
    for word in ("gemmule bench show", "gemmule compare"):
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernels", "g01_naiv"], "kernel 'g01_naiv' is not known; did you mean g01_naive"),
        (
            ["--kernels", "g01_naive[7]"],
            "g01_naive has no config [7]; give a number from 0 to 2, or fields such as tile_m=64",
        ),
        (["--sizes", "sorce"], "size 'sorce' is not known; did you mean source"),
        (["--sizes", "1,2"], "size '1,2' is not known; choose one of source, square"),
        (["--dtype", "float33"], "dtype 'float33' is not known; did you mean float32"),
        (["--out-dtype", "flot32"], "output dtype 'flot32' is not known; did you mean float32"),
    ],
)
def test_what_is_not_known_is_told_before_a_gpu_is_asked_for(arguments, message, no_gpu):
    assert message in refused("gemm", *arguments)


def test_a_ladder_without_rungs_for_the_type(device):
    assert "no rung of the ladder takes int8" in refused("gemm", *LADDER, "--dtype", "int8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--layout", "nx"],
        ["--seconds", "0"],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
        ["--seconds", "inf"],
        ["--seed", "-1"],
    ],
)
def test_options_out_of_range_are_refused(arguments, no_gpu):
    assert run("gemm", *arguments).exit_code == 2


def test_show_refuses_what_is_no_record_of_products(tmp_path):
    (tmp_path / "x.jsonl").write_text("nothing")
    assert "not a record file" in refused("show", tmp_path / "x.jsonl")
    assert "there is no such file" in refused("show", tmp_path / "y.jsonl")
    (tmp_path / "z.jsonl").write_text('{"record": "experiment"}\n')
    assert "the file has no products" in refused("show", tmp_path / "z.jsonl")
    head = '{"record": "experiment", "python": "3", "packages": {}, "system": "x", "cpus": 1, "date": "d"}'
    for experiment, product in (
        ('{"record": "experiment"}', '{"record": "gemm", "m": 1}'),
        (head, '{"record": "gemm", "m": 1}'),
        (head, '{"record": "gemm", "kernel": "x", "m": 1, "n": 1, "k": 1, "dtype": "x", "out_dtype": "x", '
               '"layout": "nn", "median_us": "fast"}'),
        (head, '{"record": "gemm", "kernel": "x", "config": 7, "m": 1}'),
    ):  # fmt: skip
        (tmp_path / "z.jsonl").write_text(f"{experiment}\n{product}\n")
        assert "not a whole record of products" in refused("show", tmp_path / "z.jsonl")


def test_help_explains_sizes_and_has_an_example():
    text = run("gemm", "--help").stdout
    for word in ("source", "square", "llm", "odd", "M,N,K", "Example"):
        assert word in text
    assert "gemm" in run("--help").stdout


def test_chosen_is_what_a_call_would_run(device, tmp_path, laboratory):
    device.multiprocessors = 132
    specs = [dataclasses.replace(spec, cost=lambda problem, config, _: config.tile_m) for spec in SPECS]
    laboratory.register(*specs)
    result = run("gemm", *QUICK, "--record", tmp_path)
    assert result.exit_code == 0, result.output
    # A line for each product: the default.
    assert sum(" vs top heuristic, " in line for line in result.stdout.splitlines()) == 2
    assert "GFLOP/s" not in result.stdout
    (file,) = tmp_path.glob("*.jsonl")
    timed = [one for one in read_records(file) if one["record"] == "gemm"]
    assert [(one["kernel"], one["chosen_by"]) for one in timed] == [("g01_naive", "dispatch")] * 2
    result = run("gemm", *QUICK, "--kernels", "chosen,g01_naive[*]", "--record", tmp_path / "both")
    (file,) = (tmp_path / "both").glob("*.jsonl")
    timed = [one for one in read_records(file) if one["record"] == "gemm"]
    assert [one["chosen_by"] for one in timed].count("dispatch") == 2
    # What is chosen is not measured twice.
    assert len({(one["m"], tuple(one["config"].values())) for one in timed}) == len(timed) == 6


def test_kernels_of_a_draw_are_compiled_in_groups(device, laboratory, monkeypatch):
    device.multiprocessors = 132
    specs = [dataclasses.replace(spec, cost=lambda problem, config, _: config.tile_m) for spec in SPECS]
    laboratory.register(*specs)
    monkeypatch.setattr(bench, "_GROUP_FOR_CPU", 2)
    monkeypatch.setattr(bench, "usable_cpus", lambda: 1)
    compiled = []

    def jobs_of(_choice, problem, _arch):
        compiled.append(problem.m)
        return []

    monkeypatch.setattr("gemmule.compiler.pool.jobs_of", jobs_of)
    before = []
    monkeypatch.setattr(bench, "line", lambda _: before.append(len(compiled)))
    sizes = ("--sizes", "random:5:0x10:32:64", "--dtype", "float32")
    result = run("gemm", "--kernels", "chosen", *sizes, "--seconds", "0.01")
    assert result.exit_code == 0, result.output
    # A product's line is printed when the next one's kernels are there.
    assert before == [2, 4, 4, 5, 5]


def test_a_draw_is_measured_by_what_a_call_would_run_without_tables(device, tmp_path, laboratory):
    device.multiprocessors = 132
    specs = [dataclasses.replace(spec, cost=lambda problem, config, _: config.tile_m) for spec in SPECS]
    laboratory.register(*specs)
    sizes = ("--sizes", "random:6:0x10:32:64", "--dtype", "float32,float64")
    result = run("gemm", "--kernels", "chosen", "--untuned", *sizes, "--seconds", "0.01", "--record", tmp_path)
    assert result.exit_code == 0, result.output
    assert laboratory.compiled
    (file,) = tmp_path.glob("*.jsonl")
    block, *records = read_records(file)
    assert block["untuned"] is True
    assert block["draws"] == [{"count": 6, "seed": 16, "low": 32, "high": 64}]
    assert "random:6:0x10:32:64" in block["command"]
    timed = [one for one in records if one["record"] == "gemm"]
    assert len(timed) == 12
    assert {one["chosen_by"] for one in timed} == {"dispatch"}
    assert "float64" in result.output
    assert "vs top heuristic" in result.output
    shown = run("show", file)
    assert shown.exit_code == 0, shown.output
    # A line for each product, and no table with a column for each config.
    assert sum(" vs top heuristic, " in line for line in shown.output.splitlines()) == 12
    assert "speed-up over cuBLASLt" not in shown.output


def test_untuned_without_what_a_call_would_run_is_refused():
    result = run("gemm", *LADDER, "--untuned")
    assert result.exit_code == 1
    assert "--kernels chosen" in result.output
