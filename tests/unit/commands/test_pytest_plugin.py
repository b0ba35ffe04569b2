"""The plugin of pytest: a fixture that runs kernels, and the number of schedules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

TESTS = Path(__file__).parents[2]
CASES = """
import numpy as np
from support.vgpu.cute_functions import past_the_end


def test_clean(vgpu):
    x = np.zeros(128, np.float32)
    vgpu.run(past_the_end, x, 0)
    assert (x == 1).all() and vgpu.schedules == 2


def test_faulty(vgpu):
    vgpu.run(past_the_end, np.zeros(128, np.float32), 1)
"""


def test_a_finding_fails_the_test_with_its_text(tmp_path):
    file = tmp_path / "test_kernels.py"
    file.write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-p", "gemmule.commands.pytest_plugin", "-q", "--vgpu-schedules=2"]
    options = ["-c", "/dev/null", "--rootdir", tmp_path, "-o", f"pythonpath={TESTS}", "-p", "no:cacheprovider", file]
    done = subprocess.run([*command, *map(str, options)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "CheckError: out of bounds in past_the_end_kernel" in done.stdout or "out of bounds in past" in done.stdout
