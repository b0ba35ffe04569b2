"""The table of what calls run in every type, beside cuBLASLt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

#: What a row says of its kind of product, and its page, from docs/notebook.
_KINDS = {
    "bfloat16": ("bfloat16", "../hopper/hopper_gemm.md"),
    "float16": ("float16", "../hopper/hopper_gemm.md"),
    "own": ("bfloat16, A times its own transpose", "../hopper/hopper_syrk.md"),
    "float8": ('float8_e4m3fn with `precision="float8"`, to bfloat16', "../hopper/operands.md"),
    "int8": ("int8, to int32", "../hopper/hopper_gemm.md"),
    "tf32": ('float32 with `precision="tf32"`', "../hopper/operands.md"),
    "float32": ("float32", "../ladder/g07_cp_async.md"),
    "bf16x6": ('float32 with `precision="bf16x6"`', "../hopper/bf16x6_gemm.md"),
    "float64": ("float64", "../ladder/float64_gemm.md"),
    "ozaki-15": ('float64 with `precision="ozaki-15"`', "../hopper/ozaki_gemm.md"),
}


def glance_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return ratios of cuBLASLt's time to a call's: kinds of products are rows, edges of square matrices columns.

    A cell that ran another kernel than the largest of its row names it; a tuned one has an asterisk.

    Parameters
    ----------
    records : sequence of mapping
        Products with their kind, of ``benchmarks/records/glance.py``.
    """
    cells = [one for one in records if one["record"] == "gemm" and "ratio" in one]
    edges = sorted({one["m"] for one in cells})
    rows = []
    for kind, (text, page) in _KINDS.items():
        of_kind = {one["m"]: one for one in cells if one["kind"] == kind}
        if of_kind:
            usual = of_kind[max(of_kind)]["kernel"]
            layouts = ", ".join(dict.fromkeys(one["layout"] for one in of_kind.values()))
            row = [_cell(of_kind[edge], usual) if edge in of_kind else "" for edge in edges]
            rows.append([f"[{text}]({page})", layouts, *row])
    return markdown(["M = N = K", "layout", *map(str, edges)], rows)


def _cell(record: Mapping[str, Any], usual: str) -> str:
    other = f" ({record['kernel']})" if record["kernel"] != usual else ""
    return f"{record['ratio']:.2f}{'*' if record.get('tuned') else ''}{other}"
