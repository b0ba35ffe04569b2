"""The table of what calls run in every type, beside cuBLASLt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import markdown

#: What a row says of its kind of product.
_KINDS = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "own": "bfloat16, A times its own transpose",
    "float8": 'float8_e4m3fn with `precision="float8"`, to bfloat16',
    "int8": "int8, to int32",
    "tf32": 'float32 with `precision="tf32"`',
    "float32": "float32",
    "bf16x6": 'float32 with `precision="bf16x6"`',
    "float64": "float64",
    "int8x15": 'float64 with `precision="int8x15"`',
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
    rows = [[_KINDS[kind], *(ratios.get((kind, edge), "") for edge in edges)] for kind in kinds]
    return markdown(["M = N = K", *map(str, edges)], rows)
