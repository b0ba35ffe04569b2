"""The table of products of few rows by 8-bit weights, beside cuBLASLt's and those whose operands are widened first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .tables import markdown

_HEADER = [
    "M x N x K", "h16_mixed, us", "weights, TB/s", "/ cuBLASLt", "/ with fast_accum", "/ h13_widened", "error",
    "h13_widened / cuBLASLt",
]  # fmt: skip
_BESIDE = ("cublaslt", "cublaslt_fast", "widened")


def few_rows_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return times, rates at which weights are read, ratios of others' times, and errors as a share of (|A| |B|)ij."""
    found = [record for record in records if record["record"] == "few_rows"]
    means = [_mean([_ratio(record, "mixed", beside) for record in found]) for beside in _BESIDE]
    others = _mean([_ratio(record, "widened", "cublaslt") for record in found])
    last = ["geometric mean", "", "", *(f"{mean:.3f}" for mean in means), "", f"{others:.3f}"]
    return markdown(_HEADER, [*(_row(record) for record in found), last])


def _ratio(record: Mapping[str, Any], way: str, beside: str) -> float:
    return float(record[f"{beside}_us"] / record[f"{way}_us"])


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _row(record: Mapping[str, Any]) -> list[str]:
    return [
        f"{record['m']} x {record['n']} x {record['k']}",
        f"{record['mixed_us']:.2f}",
        f"{record['n'] * record['k'] / record['mixed_us'] / 1e6:.2f}",
        *(f"{_ratio(record, 'mixed', beside):.3f}" for beside in _BESIDE),
        f"{record['mixed_error']:.1e}",
        f"{_ratio(record, 'widened', 'cublaslt'):.3f}",
    ]
