"""Products through a device: the command and `gemmule.outofcore.matmul`, on host memory as a device."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.core.dtype import numpy_dtype
from gemmule.executor.activity import Transfer
from gemmule.lab.streams import stream_trace
from gemmule.outofcore.device.engine.host_memory import is_transpose
from gemmule.outofcore.stores.matrix import TransposedSource
from gemmule.outofcore.stores.opening import open_source
from support.outofcore.killed_products import interrupting


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    rng = np.random.default_rng(0)
    np.save("A.npy", rng.standard_normal((150, 200)))
    np.save("B.npy", rng.standard_normal((200, 100)))
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(gemmule, ["matmul", *arguments])


def test_a_dry_run_says_what_happens_then(folder):
    options = ("A.npy", "B.npy", "-o", "C.npy", "--device-memory", "125KiB", "--json")
    planned = run(*options, "--dry-run")
    assert planned.exit_code == 0, planned.output
    before = json.loads(planned.stdout)
    assert not Path("C.npy").exists()
    assert before["device_bytes"] <= 125 << 10
    assert before["pinned_bytes"] <= before["memory_bytes"] - before["device_bytes"]
    assert before["binds"]["device"] < 0.99
    assert set(before["works_s"]) == {"compute", "H2D", "D2H", "disk read", "disk write"}
    assert before["bottleneck"] in before["works_s"]
    done = json.loads(run(*options, "--strategy", before["strategy"]).stdout)
    assert done["executor"] == "cpu"
    if all(done[name] == before[name] for name in ("tile_m", "tile_n", "tile_k")):
        assert [done[name] for name in ("bytes_h2d", "bytes_d2h")] == [before["bytes_h2d"], before["bytes_d2h"]]
    assert done["tiles_total"] == done["tiles_computed"] > 1
    assert 0 <= done["exposed_copy_share"] < 1
    assert 0 < done["bound_share"] <= 1
    np.testing.assert_allclose(np.load("C.npy"), np.load("A.npy") @ np.load("B.npy"), rtol=1e-10, atol=1e-10)
    assert sorted(path.name for path in folder.iterdir()) == ["A.npy", "B.npy", "C.npy"]


@pytest.mark.parametrize("options", [("--memory", "20MiB"), ("--device-memory", "125KiB")])
@pytest.mark.parametrize(
    ("output", "because"),
    [("A.npy", "is the input A.npy"), ("no/C.npy", "its folder does not exist")],
)
def test_a_dry_run_refuses_what_the_run_refuses(folder, output, because, options):
    np.save("there.npy", np.zeros(3))
    before = sorted(path.name for path in folder.iterdir())
    command = ("A.npy", "B.npy", "-o", output, *options)
    planned, done = run(*command, "--dry-run"), run(*command)
    assert planned.exit_code == done.exit_code == 1
    assert planned.stderr == done.stderr
    assert because in planned.stderr
    assert sorted(path.name for path in folder.iterdir()) == before
    assert run("A.npy", "B.npy", "-o", "there.npy", *options, "--dry-run").exit_code == 0
    assert np.load("there.npy").shape == (3,)


def test_what_is_printed(folder):
    planned = run("A.npy", "B.npy", "-o", "C.npy", "--device-memory", "125KiB", "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "150 x 100 x 200: " in planned.stdout
    assert "bound by" in planned.stdout
    assert "with --strategy " in planned.stdout
    assert "limited by: device memory (twice as much: " in planned.stdout
    assert " of it pinned, of 256 MiB" in planned.stdout
    host = run("A.npy", "B.npy", "-o", "C.npy", "--memory", "20MiB", "--dry-run")
    assert "reads 0.0004 GB, writes 0.00012 GB" in host.stdout
    assert "limited by: nothing; twice as much memory would save no reads" in host.stdout
    tight = run("A.npy", "B.npy", "-o", "C.npy", "--memory", "300KB", "--dry-run")
    assert "limited by: memory (twice as much: " in tight.stdout
    done = run("A.npy", "B.npy", "-o", "C.npy", "--device-memory", "125KiB", "--verify")
    assert done.exit_code == 0, done.output
    plan, time, summary, verified, *_ = done.stdout.splitlines()
    assert "expected" in plan
    assert time.endswith("FLOP/s: C.npy")
    assert "TFLOP/s by" in summary
    assert "nothing was computed in" in summary
    assert verified.startswith("verified")


def test_a_matrix_times_its_transpose_is_seen(folder):
    np.save("A.npy", np.random.default_rng(0).standard_normal((300, 400)))
    done = run("A.npy", "A.npy", "--transpose-b", "-o", "C.npy", "--device-memory", "400KiB", "--json")
    assert done.exit_code == 0, done.output
    a = np.load("A.npy")
    c = np.load("C.npy")
    np.testing.assert_allclose(c, a @ a.T, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(c, c.T)
    told = json.loads(done.stdout)
    # Two files with the same content are two matrices.
    np.save("D.npy", a)
    other = json.loads(
        run("A.npy", "D.npy", "--transpose-b", "-o", "E.npy", "--device-memory", "400KiB", "--json").stdout
    )
    assert told["bytes_h2d"] < 0.75 * other["bytes_h2d"]
    assert told["bytes_d2h"] == other["bytes_d2h"] == c.nbytes


def test_too_little_device_memory_is_refused_with_what_would_do(folder):
    refused = run("A.npy", "B.npy", "-o", "C.npy", "--device-memory", "9216")
    assert refused.exit_code == 1
    assert "takes at least" in refused.stderr
    assert "--device-memory" in refused.stderr
    least = int(refused.stderr.split("at least ")[1].split(" bytes")[0])
    assert run("A.npy", "B.npy", "-o", "C.npy", "--device-memory", str(least), "--dry-run").exit_code == 0
    refused = run("A.npy", "B.npy", "-o", "C.npy", "--executor", "vgpu", "--device-memory", "1MiB")
    assert "has no streams" in refused.stderr


@pytest.mark.parametrize("option", ["--device-memory 1MiB", "--strategy panels", "--trace t.json"])
def test_options_of_a_gpu_without_one(folder, monkeypatch, option):
    """They simulate a GPU's streams on the host only where the host is named."""
    monkeypatch.delenv("GEMMULE_EXECUTOR")
    monkeypatch.setattr("gemmule.api.planning.choice.device_count", lambda: 0)
    command = ("A.npy", "B.npy", "-o", "C.npy", *option.split())
    refused = run(*command)
    assert refused.exit_code == 1
    named = "a timeline" if "trace" in option else option
    assert f"{named} is for a product through a GPU, and this one runs on the host: no NVIDIA GPU" in refused.stderr
    assert "; leave it out, or give --executor cpu to stream through host memory" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["A.npy", "B.npy"]
    assert run(*command, "--executor", "cpu").exit_code == 0


def test_a_trace_and_a_timeline(folder):
    pytest.importorskip("matplotlib")
    options = ("A.npy", "B.npy", "-o", "C.npy", "--device-memory", "125KiB", "--trace", "t.json", "--timeline", "t.png")
    done = run(*options)
    assert done.exit_code == 0, done.output
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"A, B in", "compute", "C out"}
    flop = sum(event["args"]["flop"] for event in events if event.get("cat") == "kernel")
    assert flop == 2 * 150 * 100 * 200
    again = run(*options, "--force")
    assert again.exit_code == 0, again.output
    refused = run("A.npy", "B.npy", "-o", "D.npy", "--trace", "t.json", "--device-memory", "125KiB")
    assert "exists" in refused.stderr
    assert not Path("D.npy").exists()
    wrong = run("A.npy", "B.npy", "-o", "D.npy", "--timeline", "t.gif", "--device-memory", "125KiB")
    assert "neither .png nor .svg" in wrong.stderr


def test_the_trace_has_streams_in_order():
    activity = [Transfer("C(0, 0)", 5000, 9000, "compute", 10**6), Transfer("A", 0, 4000, "A, B in", 4000)]
    trace = stream_trace(activity, {"product": "x"})
    tracks = {one["args"]["name"]: one["tid"] for one in trace["traceEvents"] if one["name"] == "thread_name"}
    assert tracks == {"A, B in": 1, "compute": 2}
    copy, product = (next(one for one in trace["traceEvents"] if one.get("cat") == kind) for kind in ("copy", "kernel"))
    assert (copy["ts"], copy["dur"], copy["args"]) == (0.0, 4.0, {"bytes": 4000, "GB/s": 1.0})
    assert (product["ts"], product["args"]["TFLOP/s"]) == (5.0, 0.25)


def test_the_function(folder):
    rng = np.random.default_rng(1)
    a, b, c = rng.standard_normal((130, 90)), rng.standard_normal((90, 70)), rng.standard_normal((130, 70), "f4")
    for order in "CF":
        out = np.full((130, 70), np.nan)
        told = []
        report = gm.outofcore.matmul(
            a, b, out, c=np.asarray(c, order=order), alpha=2, beta=-1, device_memory="64KiB", executor="cpu",
            progress=lambda *now, told=told: told.append(now),
        )  # fmt: skip
        np.testing.assert_allclose(out, 2 * (a @ b) - c, rtol=1e-10, atol=1e-10)
        assert report.strategy in ("c-stationary", "panels")
        assert told[-1] == (130 * 90 * 70, 130 * 90 * 70)


def test_a_stopped_product_goes_on_to_the_same_bits(folder):
    whole = np.load("A.npy") @ np.load("B.npy")
    options = {"device_memory": "75KiB", "executor": "cpu", "strategy": "c-stationary"}

    gm.outofcore.matmul("A.npy", "B.npy", "D.npy", **options)
    with interrupting() as progress:
        gm.outofcore.matmul("A.npy", "B.npy", "C.npy", **options, progress=progress)
    assert not Path("C.npy").exists()
    report = gm.outofcore.matmul("A.npy", "B.npy", "C.npy", **options)
    assert 0 < report.tiles_computed < report.tiles
    np.testing.assert_allclose(np.load("C.npy"), whole, rtol=1e-10, atol=1e-10)


def test_a_product_goes_on_with_the_device_that_it_began_with_only(folder):
    on_device = {"device_memory": "75KiB", "executor": "cpu", "strategy": "c-stationary"}
    on_host = {"memory": "125KiB", "executor": "cpu"}
    for out, first, then in (("C.npy", on_device, on_host), ("D.npy", on_host, on_device)):
        with interrupting() as progress:
            gm.outofcore.matmul("A.npy", "B.npy", out, **first, progress=progress)
        with pytest.raises(gm.ArgumentError, match=r"whose device is (cpu, not none|none, not cpu); repeat"):
            gm.outofcore.matmul("A.npy", "B.npy", out, **then)
        assert gm.outofcore.matmul("A.npy", "B.npy", out, **first).tiles_computed


def test_the_same_bytes_in_two_types_are_no_matrix_and_its_transpose(folder):
    pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(3).integers(0, 120, (96, 64)).astype("u1")
    np.save("X.npy", bits.view("V1"))
    options = {"compute_dtype": "float32", "transpose_b": True, "executor": "cpu", "device_memory": "64KiB"}
    wide = {name: bits.view(numpy_dtype(name)).astype("f4") for name in ("float8_e4m3fn", "float8_e5m2")}
    for one, other in (("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e5m2")):
        out = np.full((96, 96), np.nan, "f4")
        gm.outofcore.matmul("X.npy", "X.npy", out, a_dtype=one, b_dtype=other, **options)
        np.testing.assert_allclose(out, wide[one] @ wide[other].T, rtol=1e-4)
    np.save("Y.npy", bits.astype("f2"))
    two = open_source("Y.npy", "a", None, np.dtype("f4")), open_source("Y.npy", "b", None, np.dtype("f4"))
    assert is_transpose(two[0], TransposedSource(two[1]))


@functools.cache
def planned_in_8_gib():
    from gemmule.api.planning.host_to_device import streaming_plan
    from gemmule.core.problem import contiguous_gemm

    return streaming_plan(contiguous_gemm(40_000, 40_000, 40_000, ("float32",) * 3), 8 << 30, 2.5)


def test_arrays_that_do_not_fit_are_streamed():
    from gemmule.api.planning.host_to_device import stream_arrays, streaming_plan
    from gemmule.core.problem import contiguous_gemm
    from gemmule.outofcore.calls.device_engine import Limits
    from gemmule.outofcore.calls.request import Request

    rng = np.random.default_rng(2)
    a, b, c = rng.standard_normal((150, 210)), rng.standard_normal((210, 90)), rng.standard_normal((150, 90))
    for left, right in ((a, b), (a[::-1, ::2], b[::2]), (a, a.T)):
        addend = c if left is not a or right is b else None
        out = np.full((left.shape[0], right.shape[1]), np.nan)
        request = Request(left, right, out, addend, 2, 3 if addend is not None else 0)
        stream_arrays(request, Limits(100_000), device="cpu")
        expected = 2 * (left @ right) + (3 * addend if addend is not None else 0)
        np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-10)
    problem = contiguous_gemm(40_000, 40_000, 40_000, ("float32",) * 3)
    assert streaming_plan(problem, 20 << 30, 2.5) is None
    chosen = planned_in_8_gib()
    assert chosen.plan.device_bytes <= 8 << 30
    assert chosen.prediction.compute_s == pytest.approx(2.5, rel=0.01)


def test_a_plan_shows_how_arrays_are_streamed():
    import dataclasses

    planned = gm.matmul.plan(np.ones((4, 5)), np.ones((5, 6)), executor="cpu")
    assert "streamed" not in str(planned)
    lines = str(dataclasses.replace(planned, streaming=planned_in_8_gib())).splitlines()
    assert "bound by compute" in next(line for line in lines if line.startswith("streamed"))
    budgets = next(line for line in lines if line.startswith("budgets"))
    assert " of 8.59 GB device memory, " in budgets
    assert " of 268.4 MB pinned; limited by: " in budgets


def test_the_table_of_streamed_products():
    from pages.streams import device_stream_table, stream_table

    own = {
        "record": "stream", "strategy": "panels", "source": "pinned", "dtype": "float32", "m": 4, "n": 5, "k": 6,
        "budgets": {"device": "8GiB"}, "wall_s": 2.5, "predicted_s": 2.25, "tflops": 48.66, "incore_rate_share": 0.9512,
        "bound_share": 0.94, "bottleneck": "compute", "exposed_copy_share": 0.0076, "bytes": {"h2d": 23.13e9, "d2h": 1},
    }  # fmt: skip
    peer = own | {"strategy": "cublasXt", "block": 8192}
    del peer["predicted_s"]
    rows = device_stream_table([own, peer]).splitlines()
    cells = [
        "4 x 5 x 6 float32",
        "8GiB",
        "pinned",
        "panels",
        "2.500",
        "2.250",
        "48.7",
        "0.951",
        "0.940 (compute)",
        "0.8 %",
        "23.1 GB",
    ]
    assert rows[2] == f"| {' | '.join(cells)} |"
    assert rows[3].startswith("| 4 x 5 x 6 float32 |  | pinned | cublasXt, blocks of 8192 | 2.500 |  | 48.7 |")
    assert len(stream_table([own, peer]).splitlines()) == 2


def test_the_tables_around_streamed_products():
    from pages.streams import (
        stream_conditions_table,
        stream_lines_table,
        stream_peers_table,
        streamed_files_table,
    )

    core = {"tflops": 48.94, "clock_mhz": 1605, "power_w": 578.5}
    own = {
        "record": "stream", "strategy": "panels", "dtype": "float32", "m": 4, "n": 5, "k": 6, "wall_s": 2.2,
        "predicted_s": 2.0, "devices": 2, "incore": [core, core | {"tflops": 48.1}], "speedup": 1.956,
        "sensors": [[core], [core | {"power_w": 700.1}, core]],
    }  # fmt: skip
    files = {
        "record": "stream", "source": "files", "dtype": "float32", "m": 4, "n": 5, "k": 6, "wall_s": 4.5,
        "stream_s": 3.25, "predicted_s": 3.5, "compute_s": 0.5, "bound_share": 0.923,
        "disk": {"read_s": 2.0, "write_s": 1.5, "both_s": 3.0},
    }  # fmt: skip
    assert stream_conditions_table([own, files]).splitlines()[2:] == [
        "| 4 x 5 x 6 float32 | panels | 2 | 48.9 (1605 MHz, 578 W) | 48.1 (1605 MHz, 578 W) | "
        "1605 MHz, 700 W, 1605 MHz, 578 W | +10.0 % | 1.956 |"
    ]
    lines = {"record": "stream", "source": "lines", "pitch": 131072, "bytes_per_s": {"2048": 20.04e9, "65536": 54e9}}
    assert stream_lines_table([own, lines]).splitlines()[2:] == ["| 2 KiB | 20.0 |", "| 64 KiB | 54.0 |"]
    one = own | {"m": 1000, "n": 1000, "k": 1000, "devices": 1, "tflops": 1, "incore_tflops": 1e-3, "source": "pinned"}
    peer = {name: one[name] for name in ("record", "dtype", "m", "n", "k", "source", "tflops")}
    peers = [peer | {"strategy": "cublasXt", "block": block, "wall_s": wall} for block, wall in ((8, 4.0), (16, 3.3))]
    other = peer | {"strategy": "cublasXt", "block": 8, "wall_s": 1.0, "source": "pageable"}
    assert stream_peers_table([one, *peers, other, files, lines]).splitlines()[2:] == [
        "| 1000 x 1000 x 1000 float32 | pinned | 2.200 | 3.300 (16) | 1.500 | 2.000 | 1.650 |"
    ]
    assert streamed_files_table([own, files, lines]).splitlines()[2:] == [
        "| 4 x 5 x 6 float32 | 4.50 | 3.25 | 3.50 | 2.00 | 1.50 | 3.00 | 0.50 | 0.923 |"
    ]


def test_the_tables_of_files_and_the_disk():
    from pages.disk import disk_ways_table, file_runs_table

    alone = {"read_s": 2.0, "write_s": 1.5, "both_s": 3.0}
    files = {
        "record": "stream", "source": "files", "dtype": "float32", "m": 4, "n": 5, "k": 6, "disk": alone,
        "disk_after": alone | {"read_s": 1.0},
        "samples": [{"stream_s": 2.0, "predicted_s": 2.2, "between_s": [1.9, 2.5]}],
    }  # fmt: skip
    way = {"record": "stream", "source": "disk", "threads": 8, "request": 4 << 20, "direct": True}
    disk = [
        way | {"what": "usual", "bytes_per_s": 1.5e9},
        way | {"what": "read", "bytes_per_s": 2e9},
        way | {"what": "write", "how": "early", "reserve_s": 0.0, "bytes_per_s": 2.5e9},
        way | {"what": "both", "how": "cached", "seconds": 1.5, "reading": {"bytes_per_s": 2e9, "seconds": 1.0}},
        way | {"what": "write", "bytes_per_s": 1.0},
    ]
    assert file_runs_table([files, *disk]).splitlines()[2:] == [
        "| 4 x 5 x 6 float32 | 2.00 | 2.20 | 1.90 to 2.50 | +10.0 % | 2.00, 1.00 | 3.00, 3.00 |"
    ]
    assert disk_ways_table([files, *disk]).splitlines()[2:] == [
        "| reads | past the page cache | 8 x 4 MiB | 2.00 |",
        "| writes | page cache, stored at once | 8 x 4 MiB | 2.50 |",
        "| reads (past the page cache), and half as many writes | page cache, stored at the end | 8 x 4 MiB each "
        "| 2.00 |",
        "| reads, repeated all along | page cache | 8 x 4 MiB | 1.50 to 1.50, median 1.50 |",
    ]
