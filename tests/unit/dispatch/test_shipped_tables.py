"""The tables that the package ships: made from records that are in the repository, of configs that kernels take."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from gemmule.core.arch import Arch
from gemmule.core.chips import CHIPS
from gemmule.dispatch import tuned_table
from gemmule.dispatch.problem_key import problem_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.tuned_file import read_tuned
from shipped_tables import shipped_entries

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
TABLES = tuned_table.shipped_files()
SPECS = {spec.name: spec for spec in REGISTRY}


def test_each_table_in_the_package_is_read():
    assert sorted(Path(tuned_table.__file__).parent.rglob("*.json")) == TABLES
    assert {table.stem for table in TABLES} == {"h100-sxm-80-gb", "h200-sxm-141-gb"}


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_a_table_is_what_its_records_say(table):
    entries = read_tuned(table)
    files = sorted({dict(one.run)["record"] for one in entries})
    again = shipped_entries([RESULTS / name for name in files])
    assert sorted(again, key=repr) == sorted(entries, key=repr), (
        f"run: python tools/shipped_tables.py {' '.join(f'benchmarks/results/{name}' for name in files)}"
    )


def test_products_of_a_matrix_and_its_own_transpose_are_no_entries():
    (file,) = RESULTS.glob("20261122T192736-*.jsonl")
    assert '"own_transpose":true' in file.read_text().replace(" ", "")
    assert shipped_entries([file]) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_layers_behind_other_kernels_come_before_what_was_timed_back_to_back(order, tmp_path):
    (file,) = RESULTS.glob("20261129T172214-*.jsonl")
    block, *lines = map(json.loads, file.read_text().splitlines())
    one = next(line for line in lines if line["record"] == "gemm" and "ratio" in line)
    records = [
        one | {"ratio": 1.2, "median_us": 1.0},
        one | {"ratio": 0.9, "median_us": 2.0, "behind": "torch.mul"},
        one | {"ratio": 0.95, "median_us": 3.0, "behind": "torch.mul"},
    ]
    given = tmp_path / file.name
    given.write_text("\n".join(map(json.dumps, [block, *(records[place] for place in order)])) + "\n")
    (entry,) = shipped_entries([given])
    assert (entry.us, entry.ratio) == (3.0, 0.95)


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_a_table_is_of_one_chip_and_found_by_its_name(table):
    (name,) = {one.chip for one in read_tuned(table)}
    assert tuned_table.shipped_file(name) == table
    assert name in {chip.name for chip in CHIPS}


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_every_entry_is_taken_by_its_kernel(table):
    entries = read_tuned(table)
    (chip,) = {chip for chip in CHIPS if chip.name == entries[0].chip}
    arch = Arch.for_device(*chip.capability)
    assert len({one.key for one in entries}) == len(entries)
    for one in entries:
        spec = SPECS[one.kernel]
        config = spec.default.of_record(dict(one.config))
        assert spec.why_not(problem_of(one.key), arch, config) is None
        known = [*spec.configs, *(spec.extra_configs() if spec.extra_configs is not None else ())]
        # Searches before this one gave other numbers of stages; tests/vgpu/kernels/test_shipped_configs.py runs each.
        assert with_two_stages(config) in map(with_two_stages, known), f"{config} is found by no search"


def with_two_stages(config):
    return dataclasses.replace(config, stages=2) if "stages" in config.as_dict() else config
