"""Failures of commands: one line or one JSON object, no traceback, and no file that is not theirs touched."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.core.errors import FileFormatError, UnsupportedError
from gemmule.outofcore.stores.formats.npy_header import read_header

SOURCES = Path(gm.__file__).parents[1]


pytestmark = pytest.mark.usefixtures("product_folder")


def run(*arguments):
    return CliRunner().invoke(gemmule, [str(one) for one in arguments])


def process(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(SOURCES)} | options.pop("env", {})
    command = [sys.executable, "-m", "gemmule", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, check=False, **options)


@pytest.mark.parametrize("operation", ["gemm", "transpose"])
def test_a_misspelled_word_for_the_chosen_kernel_has_a_suggestion(operation):
    found = run("bench", operation, "--kernels", "choosen")
    assert found.exit_code == 1
    assert "kernel 'choosen' is not known; did you mean chosen?" in found.output
    # Other commands do not take the word.
    assert "did you mean chosen" not in run("compare", "4", "4", "4", "--kernels", "choosen").output


@pytest.mark.parametrize(
    "arguments",
    [
        ("matmul", "A.npy", "A.npy", "-o", "C.npy"),
        ("matmul", "gone.npy", "B.npy", "-o", "C.npy"),
        ("matmul", "A.npy", "B.npy", "-o", "C.npy", "--alpha", "nan"),
        ("matmul", "A.npy", "B.npy", "-o", "C.npy", "--memory", "1"),
        ("bench", "gemm", "--kernels", "no_such"),
        ("compare", "4", "4", "4", "--chip", "no_such"),
        ("explain", "no_such", "--shape", "4,4,4", "--chip", "h100"),
    ],
)
def test_a_failure_is_one_json_object_where_json_is_wanted(arguments):
    done = run(*arguments, "--json")
    assert done.exit_code != 0
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.exit_code
    assert found["error"]
    assert "\n" not in found["error"]
    assert not Path("C.npy").exists()


def test_a_success_is_one_object_too():
    assert json.loads(run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--json").stdout)["output"] == "C.npy"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("option", ["--alpha", "--beta"])
def test_scalars_that_are_not_finite_are_refused(option, value):
    done = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--c", "A.npy", f"{option}={value}")
    assert done.exit_code == 2
    assert "not finite" in done.stderr


def test_a_dry_run_plans_although_the_output_is_there():
    Path("C.npy").write_bytes(b"mine")
    done = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--dry-run")
    assert done.exit_code == 0, done.output
    assert Path("C.npy").read_bytes() == b"mine"


def test_info_leaves_a_file_that_it_cannot_read_where_it_is(monkeypatch, product_folder):
    file = product_folder / "tuned.json"
    file.write_text("{not a table")
    monkeypatch.setenv("GEMMULE_TUNED", str(file))
    done = run("info")
    assert done.exit_code == 0, done.output
    assert file.read_text() == "{not a table"
    assert sorted(path.name for path in product_folder.iterdir()) == ["A.npy", "B.npy", "tuned.json"]
    assert "tuned.json" in done.stdout
    assert "unreadable" in json.loads(run("info", "--json").stdout)["tuned"]


@pytest.mark.parametrize(
    "shape", ["(" + "9" * 4301 + ", 2)", "(0x" + "f" * 5000 + ", 2)", "(-0x" + "f" * 5000 + ", 2)"]
)
def test_shapes_of_thousands_of_digits_are_refused(shape, tmp_path):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    raw = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header
    path = tmp_path / "long.npy"
    path.write_bytes(raw)
    with path.open("rb") as file, pytest.raises(FileFormatError, match=r"long\.npy: header"):
        read_header(file, "long.npy")


def test_a_name_that_the_locale_cannot_print_is_no_traceback(product_folder):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    np.save("ä.npy", np.zeros((40, 50), "f4"))
    done = process("matmul", "A.npy", "ä.npy", "-o", "ö.npy", env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert Path("ö.npy").exists()


def test_names_in_public_docstrings_can_be_imported():
    names = set()
    for name in gm.__all__:
        text = inspect.getdoc(getattr(gm, name)) or ""
        names |= set(re.findall(r"\b[A-Z][A-Za-z]+(?:Error|Report|Plan|Warning)\b", text))
    import builtins

    assert {name for name in names if not hasattr(gm, name) and not hasattr(builtins, name)} == set()
    assert issubclass(gm.WrongResultError, gm.GemmuleError)
    assert gm.outofcore.Report.__name__ == "Report"


def test_a_killed_scheduler_is_one_line(product_folder):
    pytest.importorskip("distributed", reason="distributed is not installed")
    np.save("A.npy", np.ones((900, 300), "f4"))
    np.save("B.npy", np.ones((300, 900), "f4"))
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--host", "127.0.0.1",
         "--scheduler-file", "s.json", "--no-dashboard"], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    worker = None
    try:
        _wait(lambda: Path("s.json").exists())
        address = json.loads(Path("s.json").read_text())["address"]
        worker = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard",
             "--no-nanny", "--death-timeout", "5"],
            env=os.environ | {"PYTHONPATH": str(SOURCES)}, stderr=subprocess.DEVNULL,
        )  # fmt: skip

        def kill(done, total):
            scheduler.kill()

        with pytest.raises(UnsupportedError, match=r"scheduler tcp://.*start it again"):
            gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="300KB", scheduler=address, progress=kill)
        assert not Path("C.npy").exists()
    finally:
        for child in (scheduler, worker):
            if child is not None:
                child.kill()
                child.wait()


def _wait(ready, seconds=60):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("place", ["A.npy", "hard.npy", "soft.npy", "C.npy"])
@pytest.mark.parametrize("option", ["--trace", "--timeline"])
def test_a_drawing_is_not_written_over_a_matrix(option, place, product_folder):
    np.save("A.npy", np.ones((3, 4), "f4"))
    np.save("B.npy", np.ones((4, 5), "f4"))
    os.link("A.npy", "hard.npy")
    os.symlink("A.npy", "soft.npy")
    before = Path("A.npy").read_bytes()
    result = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--force", option, place)
    assert result.exit_code == 1, result.output
    assert "name another output" in result.stderr
    assert Path("A.npy").read_bytes() == before
    assert not Path("C.npy").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--chunks"],
        ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--devices"],
        ["tune", "--dry-run", "--chip", "h100", "--sizes"],
        ["bench", "transpose", "--counts-only", "--sizes"],
    ],
)
def test_numbers_of_thousands_of_digits_are_refused(arguments):
    result = run(*arguments, "9" * 5000)
    assert result.exit_code == 2
    assert "more than 4300 digits" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--verbose"], "No such option '--verbose'; did you mean --version? See gemmule --help"),
        (
            ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--outdtype", "f4"],
            "No such option '--outdtype'; did you mean --out-dtype, --dtype or --compute-dtype? See gemmule matmul",
        ),
        (["matmul", "A.npy", "B.npy", "-o", "C.npy", "--trace"], "'--trace' requires an argument; see gemmule matmul"),
        (["bench", "gemm", "--kernels", "choosen"], "kernel 'choosen' is not known; did you mean chosen?"),
    ],
)
def test_usage_errors_are_one_line_with_the_best_remedy_first(arguments, message):
    result = run(*arguments)
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_address_within_the_process_has_three_parts(product_folder):
    from gemmule.core.errors import ArgumentError
    from gemmule.outofcore.calls.distributed import check_address

    with pytest.raises(ArgumentError, match="not an address of a Dask scheduler"):
        check_address("inproc://x")


def test_shapes_that_are_no_text_are_one_line():
    result = run("tune", "--dry-run", "--chip", "h100", "--shapes", "A.npy")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "A.npy: is not text" in result.stderr
