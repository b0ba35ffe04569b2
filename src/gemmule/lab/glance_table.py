"""The table of what calls run in every type, beside cuBLASLt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import markdown

#: What a row says of its kind of product, and its page, from the root.
_KINDS = {
    "bfloat16": ("bfloat16", "hopper/h09_production.md"),
    "float16": ("float16", "hopper/h09_production.md"),
    "own": ("bfloat16, A times its own transpose", "hopper/h15_symmetric.md"),
    "float8": ('float8_e4m3fn with `precision="float8"`, to bfloat16', "hopper/h13_widened.md"),
    "int8": ("int8, to int32", "hopper/h09_production.md"),
    "tf32": ('float32 with `precision="tf32"`', "hopper/h17_along_k.md"),
    "float32": ("float32", "ladder/g07_cp_async.md"),
    "bf16x6": ('float32 with `precision="bf16x6"`', "hopper/h12_bf16x6.md"),
    "float64": ("float64", "ladder/d03_mma_f64.md"),
    "int8x15": ('float64 with `precision="int8x15"`', "hopper/h14_int8x15.md"),
}


def glance_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return ratios of cuBLASLt's time to a call's: kinds of products are rows, edges of square matrices columns.

    Parameters
    ----------
    records : sequence of mapping
        Products with their kind, of ``benchmarks/glance.py``.
    """
    ratios = {(r["kind"], r["m"]): f"{r['ratio']:.2f}" for r in records if r["record"] == "gemm" and "ratio" in r}
    edges = sorted({edge for _, edge in ratios})
    kinds = [kind for kind in _KINDS if any((kind, edge) in ratios for edge in edges)]
    named = {kind: f"[{text}](docs/{page})" for kind, (text, page) in _KINDS.items()}
    rows = [[named[kind], *(ratios.get((kind, edge), "") for edge in edges)] for kind in kinds]
    return markdown(["M = N = K", *map(str, edges)], rows)
