"""Tables of the errors of several ways to multiply float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import markdown


def float32_errors_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest errors by inputs and K, in units of u (|A| |B|)ij."""
    rows = [r for r in records if r["record"] == "errors"]
    names = list(dict.fromkeys(name for r in rows for name in r["error_u"]))
    header = ["inputs", "K", *({"cublas": "cuBLAS"}.get(name, name) for name in names)]
    return markdown(
        header, [[r["inputs"], f"{r['k']:,}", *(f"{r['error_u'][name]:.2f}" for name in names)] for r in rows]
    )
