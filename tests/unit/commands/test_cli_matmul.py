"""The command ``gemmule matmul``: what it prints, what it refuses, what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.commands.matmul import _context_opened
from gemmule.outofcore.calls.plan import LIBRARY_BYTES
from gemmule.outofcore.journal.resumption import Work
from support.fakes.cuda import FakeCuda, Result, installed
from support.outofcore.wrong_tiles import spoil_tiles
from support.system_calls import replaced

#: What Python, its libraries and BLAS may take beyond the limit.
CONSTANT = 200 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    rng = np.random.default_rng(0)
    np.save("A.npy", rng.standard_normal((300, 200), "f4"))
    np.save("B.npy", rng.standard_normal((200, 400), "f4"))
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(gemmule, ["matmul", *arguments])


def refused(*arguments: str, code: int = 1) -> str:
    """Run what must fail with one line on stderr, and return the line."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("gemmule: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize("precision", ["ozaki", "bf16x6"])
def test_a_precision_that_the_host_does_not_use(precision, dry, folder):
    unused = f"precision '{precision}' is unused: the host computes as with 'ieee'"
    result = run("A.npy", "B.npy", "-o", "C.npy", "--precision", precision, *dry)
    assert result.exit_code == 0, result.output
    assert result.stdout.count(unused) == 1
    assert "unused" not in run("A.npy", "B.npy", "-o", "D.npy", "--precision", "ieee", *dry).stdout


def test_the_product_and_what_is_printed(folder):
    result = run("A.npy", "B.npy", "-o", "C.npy", "--memory", "12MiB", "--verify", "--seed", "7")
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load("C.npy"), np.load("A.npy") @ np.load("B.npy"), rtol=1e-3, atol=1e-3)
    plan, done, verified, vectors, rows = result.stdout.splitlines()
    assert plan.startswith("300 x 400 x 200, float32: ")
    assert "memory limit 12 MiB, plus about " in plan
    assert "FLOP/s: C.npy" in done
    assert re.fullmatch(r"verified: error 0\.\d+ of the rounding bound \(--seed 7 repeats the check\)", verified)
    assert re.fullmatch(
        r"  all rows, by 16 random vectors: one error above \S+ is missed with .* 1\.5e-05 at most", vectors
    )
    assert re.fullmatch(r"  the 16 rows with the largest deviation, by element: errors are at most \S+", rows)
    assert result.stderr == ""  # no progress where there is no terminal
    assert names(folder) == ["A.npy", "B.npy", "C.npy"]


def test_json_is_one_object(folder):
    result = run("A.npy", "B.npy", "-o", "C.npy", "--memory", "12MiB", "--json", "--verify")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    wanted = "executor device m n k dtype out_dtype tiles tile_m tile_n tile_k memory_bytes seconds gflops bytes_read"
    assert set(f"{wanted} bytes_written verified output".split()) <= record.keys()
    assert (record["m"], record["n"], record["k"]) == (300, 400, 200)
    assert (record["dtype"], record["out_dtype"], record["output"]) == ("float32", "float32", "C.npy")
    assert {"vectors", "seed", "max_error_over_bound", "passed"} <= record["verified"].keys()
    assert record["verified"]["passed"]
    assert record["memory_bytes"] <= 12 << 20
    assert json.loads(run("A.npy", "B.npy", "-o", "D.npy", "--json").stdout)["verified"] is None


def test_scalars_transposes_and_types(folder):
    a, b, c = (np.arange(n, dtype="i1").reshape(s) % 5 for n, s in ((12, (3, 4)), (20, (5, 4)), (15, (3, 5))))
    np.save("a.npy", a.T)
    np.save("b.npy", b)
    np.save("c.npy", c.astype("i4"))
    result = run(
        "a.npy", "b.npy", "-o", "out.npy", "--transpose-a", "--transpose-b", "--alpha", "-2", "--beta", "3",
        "--c", "c.npy", "--verify",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    out = np.load("out.npy")
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, -2 * (a.astype("i4") @ b.T.astype("i4")) + 3 * c)
    assert (
        run("a.npy", "b.npy", "-o", "f.npy", "--transpose-a", "--transpose-b", "--out-dtype", "float64").exit_code == 0
    )
    assert np.load("f.npy").dtype == np.float64


def test_an_adjoint(folder, rng):
    a, b = (rng.standard_normal((30, 20)) + 1j * rng.standard_normal((30, 20)) for _ in range(2))
    np.save("a.npy", a)
    np.save("b.npy", b)
    assert run("a.npy", "b.npy", "-o", "out.npy", "--transpose-a", "--conj-a", "--verify").exit_code == 0
    np.testing.assert_allclose(np.load("out.npy"), a.conj().T @ b, rtol=1e-13, atol=1e-12)


def test_raw_items_need_a_type(folder):
    x = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
    np.save("x.npy", x)
    message = refused("x.npy", "x.npy", "-o", "y.npy", "--transpose-b")
    assert "with --a-dtype, --b-dtype or --c-dtype: 'bfloat16'" in message
    for options in (["--dtype", "bfloat16"], ["--a-dtype", "bfloat16", "--b-dtype", "bfloat16"]):
        assert run("x.npy", "x.npy", "-o", "y.npy", "--transpose-b", "--force", "--verify", *options).exit_code == 0
        expected = (x.astype("f4") @ x.T.astype("f4")).astype(x.dtype)
        np.testing.assert_array_equal(np.load("y.npy").view(x.dtype), expected)
    assert "leave its type out" in refused("A.npy", "B.npy", "-o", "y.npy", "--a-dtype", "bfloat16")
    assert "float8_e4m3fn" in refused("x.npy", "B.npy", "-o", "y.npy", "--dtype", "half")


def test_failures_are_one_line(folder):
    before = names(folder)
    assert "300 x 200" in refused("A.npy", "A.npy", "-o", "C.npy")
    assert "nope.npy: there is no such file; check the name" in refused("nope.npy", "B.npy", "-o", "C.npy")
    assert "directory" in refused(".", "B.npy", "-o", "C.npy")
    needed = re.search(r"give (--memory \S+) or more", refused("A.npy", "B.npy", "-o", "C.npy", "--memory", "2KiB"))
    assert run("A.npy", "B.npy", "-o", "enough.npy", *needed[1].split()).exit_code == 0
    os.unlink("enough.npy")
    assert "256MiB" in refused("A.npy", "B.npy", "-o", "C.npy", "--memory", "much")
    assert "--beta 2 scales a matrix" in (message := refused("A.npy", "B.npy", "-o", "C.npy", "--beta", "2"))
    assert "give --c, or" in message
    assert "float3" in refused("A.npy", "B.npy", "-o", "C.npy", "--out-dtype", "float3")
    assert "choose one of" in refused("A.npy", "B.npy", "-o", "C.npy", "--out-dtype", "bool")
    assert "is the input" in refused("A.npy", "B.npy", "-o", "B.npy")
    assert "input" in refused("A.npy", "B.npy", "-o", "B.npy", "--force")
    assert "nowhere/C.npy: its folder does not exist" in refused("A.npy", "B.npy", "-o", "nowhere/C.npy")
    os.mkfifo("pipe.npy")
    assert "not a regular file" in refused("pipe.npy", "B.npy", "-o", "C.npy")
    os.unlink("pipe.npy")
    assert "no name" in refused("A.npy", "B.npy", "-o", "")
    assert "256MiB" in refused("A.npy", "B.npy", "-o", "C.npy", "--memory", "9" * 400)
    assert "256MiB" in refused("A.npy", "B.npy", "-o", "C.npy", "--memory", "")
    assert "--alpha 1e+39" in refused("A.npy", "B.npy", "-o", "C.npy", "--alpha", "1e39")
    assert "standard output" in refused("A.npy", "B.npy", "-o", "-")
    assert "--beta" in refused("A.npy", "B.npy", "-o", "C.npy", "--c", "A.npy")
    assert "float32, not bfloat16" in refused("A.npy", "B.npy", "-o", "C.npy", "--dtype", "bfloat16")
    assert "not a regular file" in refused("A.npy", "B.npy", "-o", ".", "--force")
    wide = refused("A.npy", "B.npy", "-o", "C.npy", "--precision", "ozaki-15")
    assert "--precision ozaki-15 is for float64 products, not float32 x float32" in wide
    probe = ("A.npy", "B.npy", "-o", "C.npy", "--probe", "--executor")
    for executor in ("cpu", "vgpu"):
        assert f"--executor {executor} is set; leave it out" in refused(*probe, executor)
    assert "the workers of a scheduler choose" in refused(*probe[:-1], "--scheduler", "tcp://localhost:1")
    assert "float8 is for" in refused("A.npy", "B.npy", "-o", "C.npy", "--precision", "float8", "--dry-run")
    Path("C.npy").write_bytes(b"precious")
    assert "give --force to replace it" in refused("A.npy", "B.npy", "-o", "C.npy")
    assert Path("C.npy").read_bytes() == b"precious"
    assert names(folder) == sorted([*before, "C.npy"])


def test_the_former_name_of_a_strategy(folder):
    plans = [
        run("A.npy", "B.npy", "-o", "C.npy", "--strategy", name, "--dry-run") for name in ("paper", "five-buffers")
    ]
    assert [plan.exit_code for plan in plans] == [0, 0]
    assert all("five-buffers" in plan.output for plan in plans)
    assert run("A.npy", "B.npy", "-o", "C.npy", "--strategy", "napkin", "--dry-run").exit_code == 2


def test_a_reader_that_leaves_is_no_failure_of_the_command():
    command = [sys.executable, "-m", "gemmule", "matmul", "--help"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(folder):
    Path("locked").mkdir(mode=0o500)
    assert "Permission" in refused("A.npy", "B.npy", "-o", "locked/C.npy")


def test_usage_errors_are_2(folder):
    assert run("A.npy", "-o", "C.npy").exit_code == 2
    assert run("A.npy", "B.npy").exit_code == 2
    assert run("A.npy", "B.npy", "-o", "C.npy", "--alpha", "x").exit_code == 2


def test_help_has_an_example():
    result = run("--help")
    assert result.exit_code == 0
    assert "gemmule matmul A.npy B.npy -o C.npy" in result.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_a_failed_check_keeps_no_output(folder, monkeypatch, as_json):
    spoil_tiles(monkeypatch)
    result = run("A.npy", "B.npy", "-o", "C.npy", "--verify", *(["--json"] if as_json else []))
    assert result.exit_code == 1
    assert result.stderr.startswith("gemmule: C.npy: ")
    assert result.stderr.count("\n") == 1
    assert names(folder) == ["A.npy", "B.npy"]
    if as_json:
        assert not json.loads(result.stdout)["verified"]["passed"]


def test_a_result_that_the_check_cannot_prove_is_kept_and_told(folder):
    np.save("A.npy", np.full((3, 2), 1e30, "f4"))
    np.save("B.npy", np.full((2, 4), 1e30, "f4") * np.array([[1], [-1]], "f4"))
    result = run("A.npy", "B.npy", "-o", "C.npy", "--verify")
    assert result.exit_code == 0, result.output
    assert not np.isfinite(np.load("C.npy")).any()
    assert "verified but for 12 elements: " in result.stdout
    assert "12 elements are neither proved right nor wrong, the first at row 0, column 0" in result.stdout
    found = json.loads(run("A.npy", "B.npy", "-o", "C.npy", "--verify", "--force", "--json").stdout)["verified"]
    assert (found["passed"], found["unproved"], found["first_unproved"]) == (True, 12, [0, 0])


#: Commands find the package where this process did, whatever their folder.
# The commands started here see what this process sees, and compute on the host.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GEMMULE_EXECUTOR": "cpu"}

SLOW = """
import signal, time
# Where the tests run in the background, a shell may have them ignore SIGINT, and so would the command.
signal.signal(signal.SIGINT, signal.default_int_handler)
from gemmule.host.tiles import HostTileSum
from gemmule.cli import main
add = HostTileSum.add
def slow(self, a, b):
    print("working", flush=True)
    time.sleep(0.05)
    add(self, a, b)
HostTileSum.add = slow
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("steps", [1, 20])
def test_a_signal_leaves_what_is_finished(folder, number, code, steps):
    options = ["A.npy", "B.npy", "-o", "C.npy", "--memory", "400KB", "--json"]
    command = [sys.executable, "-c", SLOW, "matmul", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as child:
        for _ in range(steps):
            assert child.stdout.readline() == "working\n"
        assert any(name.endswith(".partial") for name in names(folder))
        child.send_signal(number)
        _, errors = child.communicate(timeout=120)
    assert child.returncode == code
    assert errors.startswith("gemmule: ")
    assert errors.count("\n") == 1
    if steps == 1:
        assert "no partial results were left" in errors
        assert names(folder) == ["A.npy", "B.npy"]
        return
    assert "the same command resumes" in errors
    assert "C.npy" not in names(folder)
    assert len(names(folder)) == 4
    record = json.loads(run(*options).stdout)
    # Two tiles may have been on their way.
    slices = -(-record["k"] // record["tile_k"])
    assert steps // slices - 2 <= record["tiles_reused"] <= steps // slices
    assert record["tiles_reused"] + record["tiles_computed"] == record["tiles_total"]
    assert names(folder) == ["A.npy", "B.npy", "C.npy"]
    np.testing.assert_allclose(np.load("C.npy"), np.load("A.npy") @ np.load("B.npy"), rtol=1e-3, atol=1e-3)


def test_memory_stays_within_the_limit_and_the_constant(folder):
    rng = np.random.default_rng(0)
    np.save("big_a.npy", rng.standard_normal((6000, 1000), "f4"))
    np.save("big_b.npy", rng.standard_normal((1000, 6000), "f4"))
    limit = 48 << 20
    measure = (
        "import json, resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'gemmule.cli', *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )

    def peak(*arguments: str) -> int:
        command = [sys.executable, "-c", measure, "matmul", *arguments, "--memory", "48MiB", "--verify"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT)
        return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)

    # Against a run on next to nothing: what is left is what the product took. The matrices alone are 192 MB.
    small, large = peak("A.npy", "B.npy", "-o", "C.npy"), peak("big_a.npy", "big_b.npy", "-o", "big_c.npy")
    assert large <= small + limit + LIBRARY_BYTES
    assert large <= limit + CONSTANT
    assert os.path.getsize("big_c.npy") == 128 + 4 * 6000 * 6000


def test_stores_and_types_on_the_command_line(folder):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    a, b = np.load("A.npy"), np.load("B.npy")
    with h5py.File("data.h5", "w") as file:
        file["group/a"] = a.astype("f2")
    zarr.create_array("store.zarr", name="b", data=b, chunks=(64, 64))
    options = ["--compute-dtype", "float32", "--chunks", "64", "--shards", "128,64", "--json", "--verify"]
    result = run("data.h5::/group/a", "store.zarr::b", "-o", "store.zarr::c", *options)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["dtype"], record["output"], record["tiles_reused"]) == ("float32", "store.zarr::c", 0)
    out = zarr.open_array("store.zarr", path="c", mode="r")
    assert (out.chunks, out.shards) == ((64, 64), (128, 64))
    np.testing.assert_allclose(out[...], a.astype("f2").astype("f4") @ b, rtol=1e-3, atol=1e-3)
    assert "unreadable if the process is killed" in refused("A.npy", "B.npy", "-o", "data.h5::/c")
    assert "data.h5::/group/a" in refused("data.h5::/b", "B.npy", "-o", "C.npy")
    assert "is not computed in int32" in refused("A.npy", "B.npy", "-o", "C.npy", "--compute-dtype", "int32")
    assert run("A.npy", "B.npy", "-o", "C.zarr", "--chunks", "1,2,3").exit_code == 2
    assert names(folder) == ["A.npy", "B.npy", "data.h5", "store.zarr"]


def test_wide_integer_outputs_are_exact(folder):
    np.save("I.npy", np.full((2, 140_000), -128, np.int8))
    result = run("I.npy", "I.npy", "--transpose-b", "--out-dtype", "int64", "-o", "W.npy", "--verify")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(np.load("W.npy"), np.full((2, 2), 140_000 * 128**2))


def test_an_input_that_changed_meanwhile_is_not_gone_on_with(folder, monkeypatch):
    check = Work.check_inputs

    def touched(work):
        os.utime("A.npy", (1, 1))
        check(work)

    monkeypatch.setattr(Work, "check_inputs", touched)
    result = run("A.npy", "B.npy", "-o", "C.npy", "--memory", "200KiB")
    assert result.exit_code == 1
    line = result.stderr
    assert "A.npy: was changed while C.npy was computed" in line
    assert "partial results are in" in line
    assert "resumes" not in line
    assert not Path("C.npy").exists()


def test_permissions_are_told_by_what_opens_a_file(folder, monkeypatch):
    """As root everything may be read: what is asked beforehand says the opposite here."""
    replaced(monkeypatch, "access", lambda *_, **__: False)
    done = run("A.npy", "B.npy", "-o", "C.npy", "--trace", "t.json")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in folder.iterdir()) == ["A.npy", "B.npy", "C.npy", "t.json"]


@pytest.mark.parametrize(
    ("options", "variable", "opened"),
    [
        ({}, "", [0]),
        ({"executor": "gpu", "devices": (1, 0)}, "cpu", [1]),
        ({"devices": (7,)}, "", []),
        ({"executor": "cpu"}, "", []),
        ({}, "cpu", []),
        ({"scheduler": "tcp://node:8786"}, "", []),
    ],
)
def test_the_context_opens_while_the_product_is_imported(options, variable, opened, monkeypatch):
    class Noted(FakeCuda):
        def cuDevicePrimaryCtxRetain(self, ordinal):
            retained.append(ordinal)
            return super().cuDevicePrimaryCtxRetain(ordinal)

    retained = []
    monkeypatch.setenv("GEMMULE_EXECUTOR", variable)
    with installed(Noted()), _context_opened({"executor": None, "scheduler": None, "devices": None} | options):
        pass
    assert retained == opened


def test_a_driver_that_does_not_start_is_reported_by_what_needs_it(monkeypatch):
    class Broken(FakeCuda):
        def cuInit(self, flags):
            return (Result.CUDA_ERROR_LAUNCH_FAILED,)

    with installed(Broken()), _context_opened({"executor": None, "scheduler": None, "devices": None}):
        pass
