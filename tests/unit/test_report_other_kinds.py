"""``gemmule report``: records of kinds that are shown as they are, and profiles."""

from __future__ import annotations

import pytest
import report_records as made
from report_page import Reader, made_page, profile_records, undrawn  # noqa: F401 - a fixture


@pytest.mark.usefixtures("undrawn")
def test_other_kinds_are_shown_as_they_are(tmp_path):
    records = [made.experiment(), {"record": "overhead", "path": "matmul_out", "host_us": 5.25, "samples": [1, 2]}]
    records.append(
        {"record": "virtual_gpu", "kernel": "g04", "shape": [64, 32, 16], "seconds": 0.5, "config": {"a": 1}}
    )
    records.append({"record": "probe", "probe": "copy", "rounds": 8})
    records.append({"record": "cta_times", "kernel": "g04", "passed": [1, 2], "in_step": 0.25})
    tried = [{"kernel": "h09", "config": {"a": 1}, "median_us": us} for us in (5.0, 7.5)]
    records.append({"record": "survey", "dtype": "float32", "m": 8, "n": 8, "k": 8, "candidates": tried})
    tables = Reader(made_page(tmp_path, records)).tables
    assert tables["Surveys of a search"] == [["float32", "8", "8", "8", "2, from 5 to 7.5 us"]]
    assert ["matmul_out", "5.25"] in tables["Time of a call on the host"]
    assert tables["Time on the virtual GPU"] == [["g04", "64 x 32 x 16", "0.5"]]
    assert tables["What counters count"] == [["copy", "8"]]
    assert tables["CTAs when half of a kernel's time has passed"] == [["g04", "0.25"]]


@pytest.mark.usefixtures("undrawn")
def test_figures_by_name_are_columns(tmp_path):
    errors = {
        "record": "errors",
        "inputs": "normal(0, 1)",
        "m": 8,
        "n": 8,
        "k": 4,
        "error_u": {"ours": 0.25, "cublas": 1.5},
    }
    written = {"record": "mapped", "threads": 2, "seconds": {"pages": 0.5, "runs": 0.125}, "samples_s": {"runs": [0.1]}}
    copied = {"record": "numa", "node": 0, "alone": {"h2d": 5e10}, "together": {"h2d": 4e10}}
    tables = Reader(made_page(tmp_path, [made.experiment(), errors, written, copied])).tables
    assert tables["Errors of float32 and float64 products, in u (|A| |B|)ij"] == [
        ["normal(0, 1)", "8", "8", "4", "0.25", "1.5"]
    ]
    assert tables["Results written into memory maps"] == [["2", "0.5", "0.125"]]
    assert tables["Links from the nodes of the host"] == [["0", "5e+10", "4e+10"]]


@pytest.mark.usefixtures("undrawn")
def test_errors_of_two_kinds_have_places_of_their_own(tmp_path):
    curves = [
        one(m, m, m) for m in (64, 128, 256) for one in (lambda *mnk: made.gemm("g01", *mnk, 1.0), made.yardstick)
    ]
    errors = {"record": "errors", "inputs": "normal(0, 1)", "m": 8, "n": 8, "k": 4, "error_u": {"ours": 0.25}}
    read = Reader(made_page(tmp_path, [made.experiment(), *curves, errors]))
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert sum(one.endswith(("-errors", "-errors-beside")) for one in ids) == 2
    assert len(ids) == len(set(ids))


def test_profiles_have_the_tables_of_the_command(tmp_path):
    tables = Reader(made_page(tmp_path, [made.experiment(), *profile_records()])).tables
    figures = ["75.0 %", "4", "280.00", "70.00", "69.50", "68.00", "73.00"]
    assert tables["512 x 256 x 128, float32: time by kernel, us"] == [["g01", "g01_0", "4 2 1", "256 1 1", *figures]]
    assert tables["512 x 256 x 128, float32: time by call into CUDA, us"] == [["cuLaunchKernelEx", *figures]]
    assert tables["512 x 256 x 128, float32: time by range, on the host, us"] == [["copy in", *figures]]
    copies = tables["512 x 256 x 128, float32: time by copy, us"]
    assert [row[0] for row in copies] == ["memcpy HtoD", "memset"]
    moved = tables["512 x 256 x 128, float32: sizes of copies, MB"]
    assert moved[0] == ["memcpy HtoD", "4", "8.000", "2.000", "1.000", "4.000", "28.57"]


def test_profiles_of_two_files_are_not_added_up(tmp_path):
    one, other = ([made.experiment(date=date), *profile_records()] for date in ("20260101T000000", "20260102T000000"))
    tables = Reader(made_page(tmp_path, one, other)).tables
    for file in ("0.jsonl", "1.jsonl"):
        assert len(tables[f"512 x 256 x 128, float32: time by copy, us ({file})"]) == 2
