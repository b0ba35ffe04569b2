"""``gemmule profile`` on a GPU: CUPTI's records beside what is known of the launches and copies."""

from __future__ import annotations

import collections
import importlib.util
import json
import shutil
import subprocess
import sys
import time

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.errors import UnsupportedError
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import LADDER, REGISTRY
from gemmule.lab.products import gemm_problem, random_inputs
from gemmule.lab.profile import workload
from gemmule.lab.profile.summary import RangesOf, busy_ns, rows, window_ns
from gemmule.lab.records import read_records
from gemmule.runtime import profiling
from gemmule.runtime.bench import bench_gpu
from gemmule.runtime.device import get_device

cupti = pytest.importorskip("cupti.cupti", reason="cupti-python is not installed")
HAS_NVTX = importlib.util.find_spec("nvtx") is not None
REFERENCE = next(spec for spec in REGISTRY if spec.name == "gemm_reference")
# No tile divides it, and its rows are whole pieces of 16 bytes: there is a type for every kernel.
SIZE = (304, 208, 112)
# How far apart the clocks of host and GPU may be once CUPTI has brought them together.
_CLOCKS_NS = 100_000


def profiled(spec, size, launches):
    """Profile launches of a kernel and their copies; return the profile, the product and the seconds."""
    problem = product(spec, size)
    inputs = random_inputs(problem, 0)
    kernels = {spec.name: Choice(spec, spec.default)}
    with bench_gpu() as gpu:
        workload.check(gpu, problem, kernels, inputs, 0)
        begin = time.perf_counter()
        with profiling.profiling() as session:
            workload.run(gpu, problem, kernels, inputs, launches, session.range)
        seconds = time.perf_counter() - begin
    return session.profile(), problem, seconds


def product(spec, size):
    """Return a product of the types that the kernel takes on this GPU."""
    for dtype in ("float32", "float64", "float16"):
        problem = gemm_problem(*size, dtype, dtype, "nn")
        if (reason := spec.why_not(problem, get_device(0).arch, spec.default)) is None:
            return problem
    pytest.skip(reason)


@pytest.mark.parametrize("spec", [s for s in REGISTRY if s.operation == "gemm"], ids=lambda s: s.name)
def test_a_kernel_is_there_as_often_as_it_was_launched(spec):
    profile, problem, seconds = profiled(spec, SIZE, 7)
    with bench_gpu() as gpu, gpu.operands(problem, random_inputs(problem, 0), 1) as operands:
        names = gpu.kernel_names(gpu.kernel(problem, Choice(spec, spec.default), operands))
    assert collections.Counter(one.name for one in profile.kernels) == dict.fromkeys(names, 7)
    launch = spec.launch(problem, spec.default)
    signature = spec.signature(problem, spec.default)
    resources = artifact_for(spec, spec.default, signature, get_device(0).arch).resources
    ranges = RangesOf(profile)
    for one in profile.kernels:
        assert (one.grid, one.block) == (tuple(launch.grid), tuple(launch.block))
        assert one.registers >= resources.registers  # the driver may round up
        assert ranges.of(one.correlation) == spec.name
        # No chip does 10^17 operations a second, and no kernel takes longer than the block that it is in.
        assert problem.flop / 1e17 < one.duration_ns / 1e9 < seconds
    assert profile.lost == 0


def test_copies_have_the_sizes_of_the_arrays():
    profile, problem, _ = profiled(REFERENCE, (1024, 768, 512), 2)
    moved = collections.Counter()
    for one in profile.copies:
        moved[one.name] += one.size
    m, n, k = problem.m, problem.n, problem.k
    assert moved == {"memcpy HtoD": 4 * (m * k + k * n), "memcpy DtoH": 4 * m * n}
    ranges = RangesOf(profile)
    assert {(one.name, ranges.of(one.correlation)) for one in profile.copies} == {
        ("memcpy HtoD", "copy in"), ("memcpy DtoH", "copy out"),
    }  # fmt: skip
    calls = collections.Counter(one.name for one in profile.calls)
    assert calls["cuLaunchKernelEx"] == 2
    assert calls["cuMemcpyHtoDAsync_v2"] == 2
    assert calls["cuMemcpyDtoHAsync_v2"] == 1


def test_the_times_fit_together():
    profile, _, seconds = profiled(REFERENCE, (2048, 2048, 2048), 5)
    calls = {one.correlation: one for one in profile.calls}
    ranges = {one.name: one for one in profile.ranges}
    for one in (*profile.kernels, *profile.copies):
        assert calls[one.correlation].start_ns <= one.start_ns + _CLOCKS_NS
    inside = ranges["gemm_reference"]
    for one in profile.kernels:
        assert inside.start_ns - _CLOCKS_NS <= one.start_ns
        assert one.end_ns <= inside.end_ns + _CLOCKS_NS
    # One stream: kernels and copies follow one another.
    spans = (*profile.kernels, *profile.copies)
    assert busy_ns(spans) == sum(one.duration_ns for one in spans) <= window_ns(profile) <= seconds * 1e9
    for kind in ("range", "kernel", "call", "copy"):
        assert sum(row.share for row in rows(profile) if row.kind == kind) == pytest.approx(1)


def test_a_second_profile_has_nothing_of_the_first():
    for launches in (3, 4):
        profile, *_ = profiled(REFERENCE, SIZE, launches)
        assert len(profile.kernels) == launches
        assert [one.name for one in profile.ranges] == ["copy in", "gemm_reference", "copy out"]


def test_another_profiler_in_the_way_is_told_of():
    with bench_gpu():
        subscriber = cupti.subscribe(lambda *_: None, None)
        try:
            with pytest.raises(UnsupportedError, match="another profiler is attached"), profiling.profiling():
                pytest.skip("this CUPTI serves several subscribers")
        finally:
            cupti.unsubscribe(subscriber)


def run(*arguments):
    command = [sys.executable, "-m", "gemmule", "profile", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_with_trace_and_record(tmp_path):
    trace, folder = tmp_path / "trace.json", tmp_path / "records"
    words = ["--kernels", "ladder", "--repeat", 3, "--trace", trace, "--record", folder, "--json"]
    done = run(*SIZE, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lost"] == 0
    (path,) = folder.iterdir()
    block, *records = read_records(path)
    assert block == found["experiment"]
    assert block["gpu"]
    assert records == found["records"]
    kernels = [one for one in records if one["kind"] == "kernel"]
    assert kernels
    assert {one["count"] for one in kernels} == {3}
    assert {one["range"] for one in kernels} <= set(LADDER)
    copies = {one["name"]: one for one in records if one["kind"] == "copy"}
    m, n, k = SIZE
    assert copies["memcpy HtoD"]["bytes"] == len(kernels) * 4 * (m * k + k * n)
    assert copies["memcpy DtoH"]["bytes"] == len(kernels) * 4 * m * n
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) == 3 * len(kernels)
    queued = sum(event.get("cat") in ("kernel", "copy") for event in events)
    for end in "sf":
        assert sum(event["ph"] == end for event in events) == queued


def test_the_tables_of_the_kernel_that_is_chosen():
    done = run(1024, 1024, 1024, "--dtype", "float64")
    assert done.returncode == 0, done.stderr
    for words in ("time by kernel, us", "time by CUDA API call, us", "time by copy, us", "sizes of copies"):
        assert words in done.stdout


@pytest.mark.skipif(not HAS_NVTX, reason="nvtx is not installed")
def test_ranges_for_another_profiler():
    done = run(*SIZE, "--ranges-only")
    assert done.returncode == 0, done.stderr
    assert "nothing was measured" in done.stderr


@pytest.mark.skipif(not HAS_NVTX, reason="nvtx is not installed")
@pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not on the PATH")
def test_ncu_finds_a_kernel_by_its_range():
    wanted = next(spec for spec in REGISTRY if spec.name == "g04_register_tile")
    names = []
    for spec in (wanted, REFERENCE):
        problem = product(spec, SIZE)
        with bench_gpu() as gpu, gpu.operands(problem, random_inputs(problem, 0), 1) as operands:
            names.append(gpu.kernel_names(gpu.kernel(problem, Choice(spec, spec.default), operands)))
    watched = [
        "ncu", "--nvtx", "--nvtx-include", f"gemmule@{wanted.name}/", "--section", "LaunchStats",
        "--clock-control", "none", sys.executable, "-m", "gemmule", "profile", *map(str, SIZE),
        "--kernels", f"{wanted.name},{REFERENCE.name}", "--repeat", "2", "--ranges-only",
    ]  # fmt: skip
    done = subprocess.run(watched, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in told:
        pytest.skip("ncu may not read the counters here")
    assert done.returncode == 0, told
    # The check that comes first is outside of the range, as is the other kernel.
    for name in names[0]:
        assert sum(line.strip().startswith(name) for line in told.splitlines()) == 2, told
    for name in names[1]:
        assert name not in told
