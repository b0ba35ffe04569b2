"""Compiled kernels from a pack, in processes that have no compiler and no cache."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule

PROGRAM = """
import sys
# No compiler is installed.
sys.modules["cutlass"] = None
import torch, gemmule as gm
if len(sys.argv) > 1:
    gm.load_pack(sys.argv[1])
x = torch.randn(200, 200, device="cuda").to(torch.bfloat16)
y = torch.randn(131, 77, device="cuda").to(torch.bfloat16)
for a, b in ((x, x), (y, y.T)):
    for _ in range(2):
        got = gm.matmul(a, b)
        torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=0.01, atol=0.3)
print("right")
"""


def run(tmp_path, *arguments, **variables):
    environment = os.environ | {"GEMMULE_CACHE": str(tmp_path / "empty")} | variables
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_without_a_compiler(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "cache"))
    code = PROGRAM.replace('sys.modules["cutlass"] = None', "")
    subprocess.run([sys.executable, "-c", code], env=os.environ, check=True)
    pack = tmp_path / "x.pack"
    done = CliRunner().invoke(gemmule, ["pack", str(pack)])
    assert done.exit_code == 0, done.output
    assert len(gm.load_pack(pack).kernels) >= 2
    for result in (run(tmp_path, str(pack)), run(tmp_path, GEMMULE_PACK=str(pack))):
        assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr
    assert not (tmp_path / "empty").exists()
    without = run(tmp_path)
    assert without.returncode != 0
    assert "is not in the cache, and the kernel compiler is not installed" in without.stderr
    pack.write_bytes(pack.read_bytes()[:-1000])
    damaged = run(tmp_path, GEMMULE_PACK=str(pack))
    assert damaged.returncode != 0
    assert "x.pack is not a pack of gemmule, or is damaged" in damaged.stderr


def test_sixteen_processes_with_one_empty_cache(torch, tmp_path):
    pytest.importorskip("cutlass", reason="the kernel compiler is not installed")
    code = PROGRAM.replace('sys.modules["cutlass"] = None', "")
    environment = os.environ | {"GEMMULE_CACHE": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(16)
    ]  # fmt: skip
    for process in processes:
        out, errors = process.communicate(timeout=300)
        assert (process.returncode, out) == (0, "right\n"), errors
    assert all(path.suffix == ".kernel" for path in (tmp_path / "cache").iterdir())
