"""``gemmule matmul`` on a GPU: tiles, slices, scalars, and what it says of itself."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from gemmule.core.dtype import dtype_named
from support.oracle import assert_product, random_matrix


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "gemmule", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_files_through_the_gpu(dtype, tmp_path, rng):
    a, b = random_matrix(rng, dtype_named(dtype), (700, 333)), random_matrix(rng, dtype_named(dtype), (333, 801))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b.T)
    done = run("matmul", tmp_path / "a.npy", tmp_path / "b.npy", "--transpose-b", "-o", tmp_path / "c.npy",
               "--memory", "2MiB", "--device-memory", "1MiB", "--verify", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["executor"] == "gpu"
    assert figures["tiles"] > 1
    assert figures["verified"]["passed"]
    assert_product(np.load(tmp_path / "c.npy"), a, b)


def test_alpha_beta_and_the_host_by_name(tmp_path, rng):
    a, b, c = (rng.standard_normal((300, 300)).astype(np.float32) for _ in range(3))
    for name, array in (("a", a), ("b", b), ("c", c)):
        np.save(tmp_path / f"{name}.npy", array)
    for executor in ("gpu", "cpu"):
        done = run("matmul", tmp_path / "a.npy", tmp_path / "b.npy", "--c", tmp_path / "c.npy", "--alpha", "0.5",
                   "--beta", "-2", "-o", tmp_path / "d.npy", "--force", "--executor", executor, "--json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["executor"] == executor
        assert_product(np.load(tmp_path / "d.npy"), a, b, c, 0.5, -2.0)


def test_types_without_a_kernel_go_to_the_host_or_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(50, dtype=np.int64))
    arguments = ["matmul", tmp_path / "a.npy", tmp_path / "a.npy", "-o", tmp_path / "c.npy", "--json"]
    done = run(*arguments, "--executor", "gpu")
    assert done.returncode == 1
    assert "int64" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "c.npy").exists()
    assert json.loads(run(*arguments).stdout)["executor"] == "cpu"


def test_info_names_the_gpu():
    found = json.loads(run("info", "--json").stdout)
    assert found["devices"]
    assert found["executors"]["gpu"] == found["devices"][0]["name"]
