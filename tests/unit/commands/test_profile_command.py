"""``gemmule profile``: what is printed, written and refused, on stand-ins for the GPU and for CUPTI."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.lab.products import gemm_problem, output_type
from gemmule.lab.records import read_records
from gemmule.runtime import profiling_ranges
from support.fakes import cupti as fake_cupti
from support.fakes.bench import REFERENCE, kernel_spec, only
from support.fakes.cupti import FakeCupti, ProfiledFakeDevice, as_bytes, installed_nvtx
from support.fakes.laboratory import laboratory, no_gpu, one_gpu
from support.fakes.modules import not_installed

__all__ = ["laboratory", "no_gpu", "one_gpu"]

SPECS = tuple(
    dataclasses.replace(kernel_spec(name, only(dtype)), launch=lambda problem, _: REFERENCE.launch(problem, CONFIG))
    for name, dtype in (("g01_naive", "float32"), ("d02_in_registers", "float64"))
)
CONFIG = REFERENCE.default
SECONDS = {"g01_naive": 70e-6, "gemm_reference": 30e-6}
SIZE = (96, 80, 64)


def run(*arguments):
    return CliRunner().invoke(gemmule, ["profile", *map(str, arguments)])


def refused(*arguments):
    """Run what must fail with one line on stderr, and return the line."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("gemmule: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(autouse=True)
def _kernels(laboratory):
    laboratory.register(*SPECS)
    with installed_nvtx(None):
        yield


@pytest.fixture
def cupti():
    with fake_cupti.installed(FakeCupti()) as cupti:
        yield cupti


@pytest.fixture
def device(laboratory, one_gpu, cupti):
    return laboratory.open(ProfiledFakeDevice(cupti, seconds=dict(SECONDS)))


def by_name(records, kind):
    return {one["name"]: one for one in records if one["kind"] == kind}


def test_the_tables(device):
    result = run(*SIZE, "--kernels", "g01_naive,gemm_reference", "--repeat", 4)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    verdict, *titles = [
        line.strip() for line in result.stdout.splitlines() if line.startswith("96 x 80 x 64, float32: ")
    ]
    assert " us from the first start to the last end; kernels ran for 400.00 us, copies for " in verdict
    assert result.stdout.startswith(verdict)
    assert titles == [
        "96 x 80 x 64, float32: time by range, on the host, us", "96 x 80 x 64, float32: time by kernel, us",
        "96 x 80 x 64, float32: time by CUDA API call, us", "96 x 80 x 64, float32: time by copy, us",
        "96 x 80 x 64, float32: sizes of copies, MB",
    ]  # fmt: skip
    rows = [line.split() for line in result.stdout.splitlines()]
    # The device function beside the kernel as gemmule calls it, grid, block, share, count, total, average, ...
    (naive,) = [row for row in rows if row[:2] == ["g01_naive", "g01_naive_0"]]
    assert naive[2:] == ["4", "2", "1", "256", "1", "1", "70.0", "%", "4", "280.00", *["70.00"] * 4]
    (launches,) = [row for row in rows if row[:1] == ["cuLaunchKernelEx"]]
    assert launches[3] == "8"
    assert "missing" not in result.stdout


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_the_figures_as_json(device, dtype):
    words = ["--kernels", "gemm_reference", "--repeat", 3, "--dtype", dtype]
    result = run(*SIZE, *words, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    records = found["records"]
    assert found["lost"] == 0
    assert found["experiment"]["cupti_python"] == "13.0.1"
    assert found["experiment"]["command"].startswith("gemmule profile 96 80 64")
    kernel = by_name(records, "kernel")["gemm_reference_0"]
    assert (kernel["count"], kernel["total_us"], kernel["range"], kernel["share"]) == (3, 90.0, "gemm_reference", 1.0)
    # Nothing of the check that came first is in it: no fill, and the copies of one pass.
    copies = by_name(records, "copy")
    there, back = as_bytes(gemm_problem(*SIZE, dtype, output_type(dtype, None), "nn"))
    assert {name: (one["count"], one["bytes"]) for name, one in copies.items()} == {
        "memcpy HtoD": (2, there), "memcpy DtoH": (1, back),
    }  # fmt: skip
    assert list(by_name(records, "range")) == sorted(
        ["copy in", "gemm_reference", "copy out"], key=lambda name: -by_name(records, "range")[name]["total_us"]
    )
    for kind in ("range", "kernel", "call", "copy"):
        assert sum(one["share"] for one in records if one["kind"] == kind) == pytest.approx(1, abs=1e-4)


def test_without_kernels_the_one_that_is_chosen(device):
    records = json.loads(run(*SIZE, "--json").stdout)["records"]
    assert list(by_name(records, "kernel")) == ["g01_naive_0"]  # the first that can
    records = json.loads(run(*SIZE, "--json", "--dtype", "float16").stdout)["records"]
    assert list(by_name(records, "kernel")) == ["gemm_reference_0"]


def test_configs_are_told_apart_by_their_ranges(device):
    records = json.loads(run(*SIZE, "--kernels", "g01_naive[*]", "--json", "--repeat", 2).stdout)["records"]
    kernels = [one for one in records if one["kind"] == "kernel"]
    assert {one["name"] for one in kernels} == {"g01_naive_0"}
    labels = {one["range"] for one in kernels}
    assert len(labels) == len(kernels) == len(SPECS[0].configs)
    assert labels | {"copy in", "copy out"} == set(by_name(records, "range"))
    assert all(label.startswith("g01_naive[tile_m=") for label in labels)


def test_the_trace_and_the_record(device, tmp_path):
    trace, folder = tmp_path / "trace.json", tmp_path / "records"
    result = run(*SIZE, "--kernels", "ladder", "--trace", trace, "--record", folder)
    assert result.exit_code == 0, result.output
    (path,) = folder.iterdir()
    assert result.stdout.splitlines()[-2:] == [f"trace: {trace}", f"record: {path}"]
    block, *records = read_records(path)
    assert block["repeat"] == 10
    assert {one["record"] for one in records} == {"profile"}
    assert {one["kind"] for one in records} == {"range", "kernel", "call", "copy"}
    found = json.loads(trace.read_text())
    assert found["otherData"] == block
    slices = [one for one in found["traceEvents"] if one["ph"] == "X"]
    for kind in ("range", "kernel", "call", "copy"):
        of_kind = by_name(records, kind)
        assert sum(one["count"] for one in of_kind.values()) == len([one for one in slices if one["cat"] == kind])
    assert sorted(tmp_path.iterdir()) == [folder, trace]


def test_a_timeline_is_replaced_with_force_only(device, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text("mine")
    assert f"{trace}: exists; give --force to replace it" in refused(*SIZE, "--trace", trace)
    assert device.sets == []  # told before anything ran
    assert trace.read_text() == "mine"
    assert run(*SIZE, "--trace", trace, "--force").exit_code == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert list(tmp_path.iterdir()) == [trace]


def test_kernels_that_do_not_take_the_product_are_skipped(device):
    result = run(*SIZE, "--kernels", "g01_naive,gemm_reference", "--dtype", "float64")
    assert result.exit_code == 0
    assert result.stderr == "skipped: g01_naive: takes float32, not float64\n"
    assert "no kernel is left to profile: g01_naive: takes float32" in refused(
        *SIZE, "--kernels", "g01_naive", "--dtype", "float64"
    )
    assert "no rung of the ladder takes int8" in refused(*SIZE, "--kernels", "ladder", "--dtype", "int8")


def test_a_wrong_kernel_is_not_profiled(device, cupti):
    def wrong(target, value, calls):
        target[...] = 0

    device.spoil["g01_naive"] = wrong
    assert "g01_naive is wrong and was not profiled" in refused(*SIZE, "--kernels", "gemm_reference,g01_naive")
    assert "subscribe" not in [name for name, *_ in cupti.log]


def test_a_product_that_does_not_fit(device):
    device.free = 1000
    assert "the operands take 7.578e-05 GB, and 1e-06 GB" in refused(*SIZE)


def test_refusals_of_cupti_are_one_line(device, cupti):
    cupti.refusals["subscribe"] = cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    assert "another profiler is attached" in refused(*SIZE)
    cupti.refusals = {"activity_enable": cupti.Result.ERROR_INSUFFICIENT_PRIVILEGES}
    assert "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in refused(*SIZE)
    cupti.refusals = {"get_timestamp": RuntimeError("libcupti.so.13: cannot open shared object file")}
    assert "does not load (libcupti.so.13" in refused(*SIZE)


def test_without_the_package_it_is_told_before_anything_runs(device):
    with not_installed("cupti"):
        assert "cupti-python, which is not installed; pip install 'gemmule[profile]'" in refused(*SIZE)
    assert device.sets == []
    assert device.cupti.log == []


def test_a_profile_without_kernels_is_no_profile(device):
    device.cupti.kernel = lambda *arguments: None
    assert "CUPTI recorded no kernel" in refused(*SIZE)


def test_missing_records_are_told_of(device):
    device.cupti.lost = 3
    assert "3 records are missing" in run(*SIZE).stdout


def test_ranges_for_another_profiler(device, cupti, monkeypatch):
    told = []

    @contextlib.contextmanager
    def annotate(name, domain):
        told.append((domain, name))
        yield

    monkeypatch.setattr(profiling_ranges, "call", told.append)
    with installed_nvtx(types.SimpleNamespace(annotate=annotate)):
        result = run(*SIZE, "--kernels", "g01_naive,gemm_reference", "--ranges-only")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "nothing was measured" in result.stderr
    assert told == [
        "cuProfilerStart", *[("gemmule", name) for name in ("copy in", "g01_naive", "copy out", "copy in",
                                                            "gemm_reference", "copy out")], "cuProfilerStop",
    ]  # fmt: skip
    assert cupti.log == []  # the other profiler has it


def test_ranges_only_needs_nvtx_and_writes_nothing(device):
    assert "the package nvtx, which is not installed; pip install" in refused(*SIZE, "--ranges-only")
    for output in (("--trace", "t.json"), ("--record", "r")):
        assert "measures nothing" in refused(*SIZE, "--ranges-only", *output)
    result = run(*SIZE, "--ranges-only", "--json")
    assert "measures nothing" in json.loads(result.stdout)["error"]
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


def test_without_a_gpu(no_gpu):
    line = refused(*SIZE)
    assert "no NVIDIA GPU found; " in line
    assert "gemmule compare" in line


def test_bad_arguments_are_told_of_before_a_gpu_is_asked_for(no_gpu, tmp_path):
    assert "kernel 'g01_naiv' is not known; did you mean g01_naive" in refused(*SIZE, "--kernels", "g01_naiv")
    assert "dtype 'flot32' is not known" in refused(*SIZE, "--dtype", "flot32")
    assert "there is no folder" in refused(*SIZE, "--trace", tmp_path / "none" / "t.json")
    for words in ((0, 1, 1), (1, 1), (*SIZE, "--repeat", 0), (*SIZE, "--trace", tmp_path)):
        assert run(*words).exit_code == 2
