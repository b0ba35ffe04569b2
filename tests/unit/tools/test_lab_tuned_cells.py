"""The table of a shipped table's cells: figures of the records that it was made from, and means over what there is."""

from __future__ import annotations

import json

import pytest

from gemmule.core.errors import UnsupportedError
from gemmule.dispatch.tuned_file import write_tuned
from gemmule.kernels.hopper.gemm.spec import SPEC
from pages import tuned_cells
from shipped_tables import shipped_entries

FILE = "20990101T000000-nvidia-h200-abc.jsonl"


def product(size, config, us, ratio, chosen_by):
    m, n, k = size
    named = {"dtype": "float16", "out_dtype": "float16", "layout": "nn", "m": m, "n": n, "k": k}
    timed = {"median_us": us, "samples_us": [us], "tflops": 2 * m * n * k / us / 1e6, "yardstick_best_us": us * ratio}
    more = {"ratio": ratio, "chosen_by": chosen_by}
    return {"record": "gemm", "kernel": SPEC.name, "config": config.as_dict()} | named | timed | more


@pytest.fixture
def shipped(tmp_path):
    """Return a folder with records, and a table made from them."""
    records = [
        {"record": "experiment", "gpu": "NVIDIA H200", "date": "20990101T000000", "commit": "abc"},
        product((512, 512, 512), SPEC.configs[0], 4.0, 0.5, "dispatch"),
        product((512, 512, 512), SPEC.configs[1], 2.0, 1.0, "search"),
        product((1, 4096, 4096), SPEC.configs[2], 14.0, 0.25, "dispatch"),
        product((24, 24, 24), SPEC.configs[2], 1.0, 0.01, "dispatch"),
    ]
    (tmp_path / FILE).write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    table = tmp_path / "h200.json"
    write_tuned(table, shipped_entries([tmp_path / FILE]))
    return tmp_path, table


def test_cells_stand_with_what_was_taken_unsearched(shipped):
    block = tuned_cells.tuned_cells_block(shipped[0], "H200", "float16", shipped[1]).splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in block[2:4]}
    assert rows["512 x 512 x 512"][1] == "2.0"
    assert rows["512 x 512 x 512"][6:] == ["1.000", "0.500", "20990101T000000 |"]
    assert rows["1 x 4096 x 4096"][6:8] == ["0.250", "the same"]
    # 33.6 MB at 4.8 TB/s are 7.0 us: half of the time, and twice what the baseline takes.
    assert rows["1 x 4096 x 4096"][3:5] == ["0.50", "2.00"]
    assert block[-1].startswith(
        "2 of 55 cells: geometric mean 0.500, least 0.250 at 1 x 4096 x 4096, 1 below 1. Not measured: 1 x 576 x 7168, "
    )


def test_a_type_that_the_table_lacks(shipped):
    with pytest.raises(KeyError, match="no cell in bfloat16"):
        tuned_cells.tuned_cells_block(shipped[0], "H200", "bfloat16", shipped[1])


def test_a_table_that_is_not_of_its_records(shipped):
    text = (shipped[0] / FILE).read_text(encoding="utf-8")
    (shipped[0] / FILE).write_text(text.replace('"median_us": 2.0', '"median_us": 2.5'), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="no record of"):
        tuned_cells.tuned_cells_block(shipped[0], "H200", "float16", shipped[1])
