"""The benchmark of a disk, with a little of it: every way is noted in the record, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmule.lab.records import read_records
from pages.disk import disk_ways_table

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "records" / "disk_ways.py"


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    try:
        os.close(os.open(folder / "tried", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system does not read past the page cache")
    (folder / "tried").unlink()
    return folder


@pytest.mark.slow
def test_every_way_is_noted(tmp_path, scratch):
    results = tmp_path / "results"
    command = [sys.executable, str(BENCHMARK), str(results), str(scratch), "--mib", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = results.iterdir()
    records = read_records(file)
    whats = [record["what"] for record in records[1:]]
    assert {what: whats.count(what) for what in set(whats)} == {
        "write": 9, "probe": 1, "usual": 6, "read": 18, "both": 12
    }  # fmt: skip
    assert disk_ways_table(records).count("\n") > 30
    assert list(scratch.iterdir()) == []
