"""Tables of the same calls of two versions of the project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.lab.gemm_operation import size_text

from .markdown import markdown

Record = Mapping[str, Any]


def versions_table(records: Sequence[Record]) -> str:
    """Return a row for each product: times of both versions, and their ratio."""
    rows = []
    for one in records:
        if one["record"] != "commits":
            continue
        product = size_text(one) if one["k"] else f"transpose of {one['m']} x {one['n']}"
        types = ":".join(filter(None, [one["dtype"], one.get("precision", ""), one.get("out_dtype", "")]))
        if "failure" in one:
            rows.append([product, types, one["layout"], one["failure"], "", "", ""])
            continue
        spread = f"{one['ratio_low']:.3f} to {one['ratio_high']:.3f}"
        times = [f"{one[name]:.1f}" for name in ("before_us", "after_us")]
        rows.append([product, types, one["layout"] if one["k"] else "", *times, f"{one['ratio']:.3f}", spread])
    return markdown(
        ["product", "types", "layout", "us before", "us after", "before / after", "of eight in ten pairs"], rows
    )
