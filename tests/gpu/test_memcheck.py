"""compute-sanitizer's memcheck over a short run of every kernel, and over a run with a planted fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def sanitize(*arguments):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    path = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    return subprocess.run(
        [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, HERE / "memcheck.py", *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_kernel_reads_or_writes_out_of_bounds():
    run = sanitize()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "ERROR SUMMARY: 0 errors" in run.stdout
    assert "kernel runs" in run.stdout


def test_a_planted_fault_is_found():
    run = sanitize("--plant")
    assert run.returncode != 0
    assert "Invalid __global__" in run.stdout
