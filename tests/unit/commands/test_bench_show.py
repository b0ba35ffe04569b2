"""``gemmule bench show``: record files and folders of them, and what has no products."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule
from support.report import records as made

COUNTS = [made.experiment(), made.counts("g01_naive_uncoalesced", 64, "dram__bytes_read.sum", hardware=1.0)]
PRODUCTS = [made.experiment(), made.gemm("g01_naive_uncoalesced", 64, 64, 64, 1.0)]


def show(path):
    return CliRunner().invoke(gemmule, ["bench", "show", str(path)])


def test_a_folder_stands_for_its_files(tmp_path):
    files = {"a": COUNTS, "b": PRODUCTS, "c": [made.experiment(), made.transpose("t01_naive", 96, 100.0)]}
    for name, records in files.items():
        made.write(tmp_path / f"{name}.jsonl", records)
    result = show(tmp_path)
    assert result.exit_code == 0, result.output
    both = [show(tmp_path / f"{name}.jsonl").stdout for name in ("b", "c")]
    assert "64 x 64 x 64, float32, nn" in both[0]
    assert result.stdout == (
        f"b.jsonl\n{both[0]}\nc.jsonl\n{both[1]}\n"
        f"without products and transposes: a.jsonl; `gemmule report {tmp_path}` shows what they hold\n"
    )


def test_a_folder_of_one_file_is_shown_as_the_file(tmp_path):
    path = made.write(tmp_path / "a.jsonl", PRODUCTS)
    assert show(tmp_path).stdout == show(path).stdout


@pytest.mark.parametrize("records", [COUNTS, [made.experiment(), {"record": "profile", "m": 1}]])
def test_without_products_the_report_is_the_remedy(records, tmp_path):
    path = made.write(tmp_path / "a.jsonl", records)
    for given, what in ((path, "a.jsonl: the file"), (tmp_path, f"{tmp_path.name}: the folder")):
        result = show(given)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == (
            f"gemmule: {what} has no products and no transposes; give one that `gemmule bench` wrote, or see all that "
            f"it holds with `gemmule report {given}`\n"
        )


def test_a_folder_without_files_is_told(tmp_path):
    assert "the folder holds no record files" in show(tmp_path).stderr


@pytest.mark.parametrize("record", [made.gemm("g01_naive", 64, 64, 64, 1.0), made.transpose("t01_naive", 96, 100.0)])
def test_the_ratio_is_that_of_the_paired_times_whose_interval_stands_beside_it(record, tmp_path):
    """The quotient of two medians may lie outside of the interval of the paired ratios."""
    paired = {"ratio": 0.9, "paired_ratio": 0.95, "paired_ratio_low": 0.94, "paired_ratio_high": 0.96}
    path = made.write(tmp_path / "a.jsonl", [made.experiment(), {**record, **paired}])
    result = show(path)
    assert result.exit_code == 0, result.output
    assert "0.950 (0.940 to 0.960)" in " ".join(result.stdout.split())
    assert "0.900" not in result.stdout
