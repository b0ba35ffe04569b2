"""compute-sanitizer over a short run of every kernel: its memcheck, with a planted fault too, and its racecheck."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gemmule.dispatch.registry import REGISTRY

HERE = Path(__file__).parent


NAMES = [spec.name for spec in REGISTRY]


def sanitize(check, *arguments):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed")
    path = os.pathsep.join([str(HERE.parent), *sys.path])
    return subprocess.run(
        [tool, "--tool", check, "--error-exitcode", "9", sys.executable, HERE / "memcheck.py", *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def sanitize_in_parts(check, name):
    """Run the kernel's configs and dtypes in processes beside each other: each compiles its own."""
    parts = min(16, os.cpu_count())
    with ThreadPoolExecutor(parts) as pool:
        runs = [*pool.map(lambda i: sanitize(check, name, "--part", f"{i}/{parts}"), range(parts))]
    for run in runs:
        assert run.returncode == 0, told(run)
    assert sum(int(re.search(r"^(\d+) kernel runs$", run.stdout, re.MULTILINE)[1]) for run in runs) > 0
    return runs


def told(run):
    """What a run said: the first report names the kernel, the end the place in the test."""
    first = run.stdout.find("========= ", run.stdout.find("COMPUTE-SANITIZER") + 20)
    return run.stdout[max(first, 0) :][:3000] + "\n...\n" + run.stdout[-1000:] + run.stderr[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_reads_or_writes_out_of_bounds(name):
    for run in sanitize_in_parts("memcheck", name):
        assert "ERROR SUMMARY: 0 errors" in run.stdout


def test_a_planted_fault_is_found():
    run = sanitize("memcheck", "--plant", "g01")
    assert run.returncode != 0
    assert "Invalid __global__" in run.stdout


@pytest.mark.parametrize("name", NAMES)
def test_no_kernel_races_for_shared_memory(name):
    for run in sanitize_in_parts("racecheck", name):
        assert "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" in run.stdout
