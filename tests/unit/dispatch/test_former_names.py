"""Former names of kernels, in records, tuned tables and what they are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmule.core.dtype import Precision
from gemmule.core.problem import contiguous_gemm
from gemmule.dispatch import former_names
from gemmule.dispatch.problem_key import ProblemKey, key_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.tuned_file import read_tuned
from gemmule.lab.records import read_records

NAMES = {spec.name for spec in REGISTRY}
#: Kernels that others launch: the registry does not have them.
FOLLOWERS = {"bf16x6_products", "ozaki_products", "ozaki_residues", "ozaki_reconstruction"}


def test_every_former_name_is_of_a_kernel_or_precision_of_today():
    assert set(former_names.PRECISIONS.values()) <= {one.value for one in Precision}
    assert not {one.value for one in Precision}.intersection(former_names.PRECISIONS)
    assert set(former_names.KERNELS.values()) <= NAMES | FOLLOWERS
    assert not NAMES.intersection(former_names.KERNELS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("h09_production", "hopper_gemm"),
        ("h11_packed + h09_production", "hopper_gemm_repacked + hopper_gemm"),
        ("h09_production_l2_64[tile_m=128]", "h09_production_l2_64[tile_m=128]"),
        ("h09_production [tile_m=64 swapped=1]", "hopper_gemm [tile_m=64 swap_ab=1]"),
        ("float64 (int8x15) by h14_int8x15", "float64 (ozaki-15) by ozaki_gemm"),
        ("hopper_syrk[swapped=0,group=8]", "hopper_syrk[swap_ab=0,group=8]"),
        ("swapped tiles of g07_cp_async[tile_m=64]", "swapped tiles of g07_cp_async[tile_m=64]"),
    ],
)
def test_whole_words_are_replaced(before, after):
    assert former_names.current_names(before) == after


def test_records_are_read_under_the_names_of_today(tmp_path):
    path = tmp_path / "old.jsonl"
    lines = [
        {"record": "experiment", "command": "gemmule bench gemm --kernels h09_production"},
        {"record": "gemm", "kernel": "h09_production", "config": {"swapped": 1, "tile_m": 64}, "m": 3},
        {"record": "epilogue", "kernel": "h09_production", "plain_config": {"swapped": 0}, "best_kernel": "none"},
        {"record": "configs", "kernel": "h15_symmetric", "configs": [{"swapped": 0}, {"tile_m": 128}]},
        {"record": "errors", "precision": "int8x14", "kind": "int8x16", "error_u": {"int8x15": 0.5, "cuBLAS": 0.25}},
        {"record": "check", "what": "memcheck of h15_symmetric", "by": {"d03_mma_f64": [{"kernel": "t12_production"}]}},
        {"record": "stream", "strategy": "paper", "host": "paper"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    experiment, gemm, epilogue, configs, errors, check, stream = read_records(path)
    assert experiment == lines[0]  # the command is what was typed
    assert gemm == {"record": "gemm", "kernel": "hopper_gemm", "config": {"swap_ab": 1, "tile_m": 64}, "m": 3}
    assert epilogue["plain_config"] == {"swap_ab": 0}
    assert configs["configs"] == [{"swap_ab": 0}, {"tile_m": 128}]
    assert (errors["precision"], errors["kind"]) == ("ozaki-14", "ozaki-16")
    assert errors["error_u"] == {"ozaki-15": 0.5, "cuBLAS": 0.25}
    assert check["what"] == "memcheck of hopper_syrk"
    assert check["by"] == {"float64_gemm": [{"kernel": "transpose_tiled"}]}
    assert (stream["strategy"], stream["host"]) == ("five-buffers", "paper")


def test_a_product_of_before_has_the_precision_of_today():
    key = key_of(contiguous_gemm(8, 8, 8, ("float64",) * 3, precision=Precision.OZAKI_15))
    assert key.precision == "ozaki-15"
    assert ProblemKey.of_dict(key.as_dict() | {"precision": "int8x15"}) == key


def test_a_tuned_table_of_before_names_kernels_and_configs_of_today():
    """The table that is shipped was measured under former names."""
    path = Path(former_names.__file__).parents[1] / "dispatch" / "tuned" / "h200-sxm-141-gb.json"
    assert '"h09_production"' in path.read_text()
    configs = {spec.name: spec for spec in REGISTRY}
    for entry in read_tuned(path):
        spec = configs[entry.kernel]
        assert spec.default.of_record(dict(entry.config)).is_recorded(dict(entry.config))
