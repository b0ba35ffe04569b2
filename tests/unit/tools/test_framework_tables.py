"""The tables of docs/notebook/frameworks.md say what their records say."""

from __future__ import annotations

import pytest

from pages.frameworks import host_times_table, training_table

MODEL = {"layers": 2, "width": 64, "steps": 3, "batch": 4, "context": 16}
TEXT = {"what": "words", "bytes": 1000, "sha256": "0"}


def trained(layers, loss, arithmetic="float32", step_ms=1.0):
    return {
        "record": "training", "layers": layers, "arithmetic": arithmetic, "model": MODEL, "text": TEXT,
        "parameters": 123, "loss": loss, "step_ms": step_ms,
    }  # fmt: skip


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_how_far_curves_lie_apart():
    records = [
        {"record": "experiment"},
        trained("torch.nn.Linear, sums reversed", [4.0, 2.02, 1.0]),
        trained("gemmule.torch.Linear", [4.0, 1.9, 1.01], step_ms=2.5),
        trained("torch.nn.Linear", [4.0, 2.0, 1.0]),
    ]
    first, _, _, _, row = training_table(records).splitlines()
    assert first == "2 layers of width 64, 123 parameters, 3 steps of 4 x 16 bytes of `words` (1000 bytes):"
    assert cells(row) == ["float32", "4.0000", "1.0000", "1.0100", "5.0e-02", "1.0e-02", "1.0", "2.5"]


def test_curves_that_do_not_belong_together_are_refused():
    with pytest.raises(KeyError, match="no training"):
        training_table([{"record": "experiment"}])
    both = [trained("torch.nn.Linear", [1.0]), trained("gemmule.torch.Linear", [1.0, 2.0]), trained("other", [1.0])]
    with pytest.raises(ValueError, match="shorter"):
        training_table(both)


def test_host_times():
    records = [
        {"record": "overhead", "path": "torch_mm", "dtype": "float32", "host_us": 10.04},
        {"record": "overhead", "path": "matmul", "dtype": "float32", "host_us": 20.0},
        {"record": "overhead", "path": "matmul", "dtype": "bfloat16", "host_us": 30.0},
    ]
    header, _, *rows = host_times_table(records).splitlines()
    assert cells(header) == ["call", "us, float32", "us, bfloat16"]
    assert [cells(row) for row in rows] == [["`torch_mm`", "10.0", ""], ["`matmul`", "20.0", "30.0"]]
    with pytest.raises(KeyError, match="no overhead"):
        host_times_table([{"record": "check"}])


def test_host_times_of_two_runs():
    def run(commit, *times):
        yield {"record": "experiment", "commit": commit}
        for path, dtype, host_us in times:
            yield {"record": "overhead", "path": path, "dtype": dtype, "host_us": host_us}

    records = [
        *run("before", ("matmul", "float32", 20.0), ("matmul", "bfloat16", 30.0)),
        *run("after", ("matmul", "float32", 2.0), ("transpose", "float32", 1.0), ("matmul", "bfloat16", 3.0)),
    ]
    header, _, *rows = host_times_table(records).splitlines()
    assert cells(header) == [
        "call", "us, float32, before", "us, float32, after", "us, bfloat16, before", "us, bfloat16, after",
    ]  # fmt: skip
    assert [cells(row) for row in rows] == [
        ["`matmul`", "20.0", "2.0", "30.0", "3.0"], ["`transpose`", "", "1.0", "", ""],
    ]  # fmt: skip
