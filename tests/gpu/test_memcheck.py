"""compute-sanitizer over a short run of every kernel: its memcheck, with a planted fault too, and its racecheck."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def sanitize(check, *arguments):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    path = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    return subprocess.run(
        [tool, "--tool", check, "--error-exitcode", "9", sys.executable, HERE / "memcheck.py", *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def told(run):
    """What a run said: the first report names the kernel, the end the place in the test."""
    first = run.stdout.find("========= ", run.stdout.find("COMPUTE-SANITIZER") + 20)
    return run.stdout[max(first, 0) :][:3000] + "\n...\n" + run.stdout[-1000:] + run.stderr[-3000:]


def test_no_kernel_reads_or_writes_out_of_bounds():
    run = sanitize("memcheck")
    assert run.returncode == 0, told(run)
    assert "ERROR SUMMARY: 0 errors" in run.stdout
    assert "kernel runs" in run.stdout


def test_a_planted_fault_is_found():
    run = sanitize("memcheck", "--plant")
    assert run.returncode != 0
    assert "Invalid __global__" in run.stdout


def test_no_kernel_races_for_shared_memory():
    run = sanitize("racecheck")
    assert run.returncode == 0, told(run)
    assert "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" in run.stdout
    assert "kernel runs" in run.stdout
