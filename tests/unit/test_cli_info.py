"""``gemmule info``: what is here, and the cache of compiled kernels."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import device_count


@pytest.fixture
def info(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path))
    (tmp_path / f"gemm_reference-sm_90a-{'0123' * 6}.kernel").write_bytes(b"x" * 1000)
    (tmp_path / "notes.txt").write_text("not the cache's")

    def run(*arguments):
        done = CliRunner().invoke(gemmule, ["info", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_it_names_everything(info):
    found = json.loads(info("--json"))
    assert [kernel["name"] for kernel in found["kernels"]] == [spec.name for spec in REGISTRY]
    assert len(found["devices"]) == device_count()
    assert "blas" in found["executors"]["cpu"].lower()
    assert "virtual GPU (sm_90a)" in found["executors"]["vgpu"]
    assert (found["cache"]["kernels"], found["cache"]["bytes"]) == (1, 1000)
    assert set(found["tuned"]) == {"file", "products", "shipped"}
    assert found["tuned"]["shipped"]["h200-sxm-141-gb"] > 0
    text = info()
    assert f"tuned: {found['tuned']['products']} products in {found['tuned']['file']}; shipped: " in text
    for word in (*(spec.name for spec in REGISTRY), "GPUs", "cpu:", "compiled kernels: 1"):
        assert word in text


def test_it_clears_what_the_cache_made_and_nothing_else(info, tmp_path):
    assert "removed 1 compiled kernels, 1000 bytes" in info("--clear-cache")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    found = json.loads(info("--clear-cache", "--json"))
    assert (found["cleared"]["kernels"], found["cache"]["kernels"]) == (0, 0)


def test_a_cache_that_does_not_exist_is_empty(info, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "nowhere"))
    assert json.loads(info("--json"))["cache"]["kernels"] == 0
