"""The script that measures host arrays, on small products: it runs to its end, without a GPU too."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import host_arrays

from pages.call_overhead import overhead_table


def test_small_products_have_records_beside_the_librarys(tmp_path, monkeypatch):
    monkeypatch.setattr(host_arrays, "SMALL_CALLS", 2)
    monkeypatch.setattr(host_arrays, "SMALL_ROUNDS", 3)
    monkeypatch.setattr(sys, "argv", ["host_arrays.py", str(tmp_path), "--small"])
    host_arrays.main()
    (file,) = tmp_path.glob("*.jsonl")
    _, *records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert len(records) == 2 * 2 * len(host_arrays.SMALL)
    table = overhead_table(records).splitlines()
    assert sum("gm.matmul" in row and not row.endswith("|  |") for row in table) == len(records) / 2
    assert any("1024 of 2 x 2 x 2 float64" in row for row in table)
