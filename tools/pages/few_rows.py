"""The table of products of few rows by 8-bit weights, beside cuBLASLt's and those whose operands are widened first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

_BESIDE = {"cublaslt": "vs cuBLASLt", "cublaslt_fast": "vs fast_accum", "widened": "vs hopper_gemm_upcast"}
_OTHERS = "hopper_gemm_upcast vs cuBLASLt"


def few_rows_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return times, rates at which weights are read, ratios of others' times, and errors as a share of (|A| |B|)ij.

    Where configs were searched, the time of the fastest stands beside that of the one that was chosen.
    """
    found = [record for record in records if record["record"] == "few_rows"]
    beside = [name for name in _BESIDE if f"{name}_us" in found[0]]
    searched, both = _fastest(found[0]) is not None, "cublaslt" in beside
    header = ["M x N x K", "hopper_gemm_w8a16, us", *(["fastest config, us"] if searched else []), "weights, TB/s"]
    header += [*(_BESIDE[name] for name in beside), "error", *([_OTHERS] if both else [])]
    rows = []
    for record in found:
        m, n, k, us = (record[field] for field in ("m", "n", "k", "mixed_us"))
        best = _fastest(record)
        row = [f"{m} x {n} x {k}", f"{us:.2f}"]
        if searched:
            row.append(f"{best:.2f}" if best is not None else "")
        row.append(f"{n * k / us / 1e6:.2f}")
        row += [f"{_ratio(record, 'mixed', name):.3f}" for name in beside]
        row.append(f"{record['mixed_error']:.1e}")
        if both:
            row.append(f"{_ratio(record, 'widened', 'cublaslt'):.3f}")
        rows.append(row)
    means = [_mean([_ratio(record, "mixed", name) for record in found]) for name in beside]
    last = ["geometric mean", *[""] * (3 if searched else 2), *(f"{mean:.3f}" for mean in means), ""]
    if both:
        last.append(f"{_mean([_ratio(record, 'widened', 'cublaslt') for record in found]):.3f}")
    return markdown(header, [*rows, last])


def _fastest(record: Mapping[str, Any]) -> float | None:
    """Return the least time of a config, be it chosen or only searched, or None where none was searched."""
    times = [
        us
        for name, us in record.items()
        if name.startswith("tile_n=") and name.endswith("_us") and not name.endswith("_samples_us")
    ]
    return min(*times, record["mixed_us"]) if times else None


def _ratio(record: Mapping[str, Any], way: str, beside: str) -> float:
    return float(record[f"{beside}_us"] / record[f"{way}_us"])


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
