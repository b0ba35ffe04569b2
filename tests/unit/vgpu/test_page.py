"""The worked examples of docs/vgpu.md: they run as printed, and the fault is found as quoted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

PAGE = (Path(__file__).parents[3] / "docs" / "vgpu.md").read_text(encoding="utf-8")


def block(name):
    return re.search(rf"<!-- tested: {re.escape(name)} -->\n```\w*\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def run(tmp_path):
    def command(*arguments):
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "axpy.py").write_text(block("axpy.py"))
    return command


def test_the_example_runs(run):
    done = run("axpy.py")
    assert done.returncode == 0, done.stderr


def test_the_command_finds_nothing(run):
    done = run("-m", "gemmule", "check", "axpy.py::axpy", "float32[1000]", "float32[1000]=0", "2.0", "--schedules", "3")
    assert done.stdout in PAGE
    assert done.returncode == 0, done.stderr


def test_the_fault_is_found_as_quoted(run, tmp_path):
    text = block("axpy.py").replace("    if place < cute.size(x):\n        y[place]", "    y[place]")
    (tmp_path / "axpy.py").write_text(text)
    done = run("axpy.py")
    assert done.returncode == 1
    assert " ".join(block("finding").split()) in done.stderr


def test_the_test_of_the_page_passes_under_three_schedules(run, tmp_path):
    (tmp_path / "test_axpy.py").write_text(block("test_axpy.py"))
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--vgpu-schedules=3", "test_axpy.py")
    assert done.returncode == 0, done.stdout


def test_the_example_of_triton_runs(run, tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    (tmp_path / "add.py").write_text(block("add.py"))
    done = run("add.py")
    assert done.returncode == 0, done.stderr
