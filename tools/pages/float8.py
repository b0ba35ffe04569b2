"""The table of products of 8-bit floats, beside cuBLASLt's two ways to sum them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

_HEADER = [
    "M x N x K", "`precision=\"float8\"`, TFLOP/s", "vs cuBLASLt", "vs fast_accum", "error", "default, TFLOP/s",
    "vs cuBLASLt", "error", "gemm_reference",
]  # fmt: skip


def float8_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return rates, ratios to cuBLASLt, and largest errors as a share of (|A| |B|)ij, a product a row."""
    return markdown(_HEADER, [_row(record) for record in records if record["record"] == "float8"])


def _row(record: Mapping[str, Any]) -> list[str]:
    flop = 2 * record["m"] * record["n"] * record["k"]

    def rate(way: str) -> str:
        return f"{flop / record[f'{way}_us'] / 1e6:.1f}" if f"{way}_us" in record else ""

    def ratio(way: str, beside: str) -> str:
        return f"{record[f'{beside}_us'] / record[f'{way}_us']:.3f}" if f"{beside}_us" in record else ""

    return [
        f"{record['m']} x {record['n']} x {record['k']}",
        rate("float8"),
        ratio("float8", "cublaslt"),
        ratio("float8", "cublaslt_fast"),
        f"{record['float8_error']:.1e}",
        rate("default"),
        ratio("default", "cublaslt"),
        f"{record['default_error']:.1e}",
        rate("reference"),
    ]
