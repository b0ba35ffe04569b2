"""``gemmule report``: profiles, and records of kinds that it does not show."""

from __future__ import annotations

import pytest

from support.report import records as made
from support.report.page import Reader, made_page, profile_records, undrawn  # noqa: F401 - a fixture


@pytest.mark.usefixtures("undrawn")
def test_kinds_that_have_no_section_are_named(tmp_path):
    others = [{"record": "survey", "candidates": []}, {"record": "epilogue", "ratio": "no number"}]
    text = made_page(tmp_path, [made.experiment(), *others, *others])
    assert "Records of other kinds: epilogue, survey." in text


def test_profiles_have_the_tables_of_the_command(tmp_path):
    tables = Reader(made_page(tmp_path, [made.experiment(), *profile_records()])).tables
    figures = ["75.0 %", "4", "280.00", "70.00", "69.50", "68.00", "73.00"]
    assert tables["512 x 256 x 128, float32: time by kernel, us"] == [["g01", "g01_0", "4 2 1", "256 1 1", *figures]]
    assert tables["512 x 256 x 128, float32: time by CUDA API call, us"] == [["cuLaunchKernelEx", *figures]]
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
