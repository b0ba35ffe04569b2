"""``gemmule info``: ten lines on the installation, the table of kernels, and the cache of compiled kernels."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from gemmule.commands.info import _gpus, _rates, _verdict
from gemmule.dispatch.registry import EVERY_KERNEL
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
    assert [kernel["name"] for kernel in found["kernels"]] == [spec.name for spec in EVERY_KERNEL]
    assert all(kernel["configs"] == len(kernel["config_list"]) for kernel in found["kernels"])
    assert len(found["devices"]) == device_count()
    assert "blas" in found["executors"]["cpu"].lower()
    assert "virtual GPU (sm_90a)" in found["executors"]["vgpu"]
    assert (found["cache"]["kernels"], found["cache"]["bytes"]) == (1, 1000)
    assert set(found["tuned"]) == {"file", "products", "shipped"}
    assert found["tuned"]["shipped"]["h200-sxm-141-gb"] > 0


def test_ten_lines_with_the_verdict_first(info):
    found = json.loads(info("--json"))
    verdict, *lines = info().splitlines()
    if not found["devices"]:
        assert verdict == f"gemmule {found['gemmule']}: no NVIDIA GPU found; products run on the CPU"
    assert 6 <= len(lines) < 10
    assert f"tuned: {found['tuned']['products']} products in {found['tuned']['file']}; shipped: " in "\n".join(lines)
    for words in ("cpu: ", "vgpu: ", "cache: 1 compiled kernels, ", "kernels: ", "rates: "):
        assert any(line.startswith(words) for line in lines)


def test_gpus_of_one_kind_share_a_line():
    gpu = {"name": "NVIDIA H200", "capability": (9, 0), "arch": "sm_90a", "multiprocessors": 132, "memory_bytes": 2**37}
    devices = [gpu | {"ordinal": number} for number in range(8)]
    rates = {str(number): "shipped" for number in range(8)}
    assert _gpus(devices, rates) == {
        "NVIDIA H200, compute capability 9.0 (sm_90a), 132 SMs, 128.0 GiB; rates: shipped": list("01234567")
    }
    assert _verdict(devices, {"gpu": "NVIDIA H200"}, None) == "8 GPUs; products run on NVIDIA H200"


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"GEMMULE_EXECUTOR": "vgpu"}, ": GEMMULE_EXECUTOR='vgpu' is set; products run on virtual GPU (sm_90a)"),
        ({"GEMMULE_EXECUTOR": "cuda"}, ": GEMMULE_EXECUTOR='cuda' is not known; choose one of 'gpu', 'cpu', 'vgpu'"),
        (
            {"GEMMULE_PACK": "/no/pack"},
            "; GEMMULE_PACK='/no/pack' cannot be opened (No such file or directory); name",
        ),
    ],
)
def test_variables_that_products_fail_with_are_named(info, monkeypatch, variables, line):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert line in info()


@pytest.mark.parametrize(("capability", "measured"), [((9, 0), True), ((8, 9), False), ((10, 0), False)])
def test_a_calibration_is_suggested_where_it_runs(capability, measured):
    gpu = {"name": "NVIDIA GPU", "capability": capability, "multiprocessors": 100, "ordinal": 0}
    assert ("gemmule calibrate" in _rates([gpu])["devices"]["0"]) == measured


@pytest.mark.parametrize("columns", [80, 140])
def test_the_kernels_are_a_table_of_the_terminals_width(info, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = info("--kernels").splitlines()
    assert max(map(len, lines)) <= columns
    first = [line.split()[0] for line in lines if line.strip()]
    assert {spec.name for spec in EVERY_KERNEL} <= set(first)
    assert json.loads(info("--kernels", "--json")).keys() == json.loads(info("--json")).keys()


def test_it_clears_what_the_cache_made_and_nothing_else(info, tmp_path):
    assert "deleted 1 compiled kernels, 1000 bytes" in info("--clear-cache")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    found = json.loads(info("--clear-cache", "--json"))
    assert (found["cleared"]["kernels"], found["cache"]["kernels"]) == (0, 0)


def test_a_cache_that_does_not_exist_is_empty(info, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path / "nowhere"))
    assert json.loads(info("--json"))["cache"]["kernels"] == 0
