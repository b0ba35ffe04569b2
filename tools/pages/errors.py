"""Tables of the errors of several ways to multiply float32 or float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

_NAMES = {"cublas": "cuBLAS"}


def errors_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest errors by inputs and K, of every way to multiply, in units of u (|A| |B|)ij."""
    found = {(r["inputs"], r["k"]): r["error_u"] for r in records if r["record"] == "errors"}
    inputs, depths = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    ways = list(next(iter(found.values())))
    rows = [
        [one, *(" / ".join(_told(found[one, k][way]) for way in ways) if (one, k) in found else "" for k in depths)]
        for one in inputs
    ]
    header = [" / ".join(_NAMES.get(way, way) for way in ways), *(f"K = {k}" for k in depths)]
    return markdown(header, rows)


def _told(error: float) -> str:
    return f"{error:.1f}" if error < 1e5 else f"{error:.1e}"
