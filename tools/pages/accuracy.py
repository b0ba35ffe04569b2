"""Tables of the accuracy of guarded products, on inputs from harmless to hostile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

#: Errors by their fields, and how columns are headed.
_ERRORS = {
    "error_u": '`"ozaki"`', "native_u": "native kernel", "cublas_u": "cuBLAS", "cublas_emulation_u": "cuBLAS, emulated",
}  # fmt: skip


def accuracy_table(records: Sequence[Mapping[str, Any]], dtypes: Sequence[str] = ()) -> str:
    """Return what ran and the largest errors as shares of the native product's bound, an input a row.

    Parameters
    ----------
    records : sequence of mapping
        Those of other kinds are left out.
    dtypes : sequence of str
        Types that are shown; none are all.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in records:
        if one["record"] == "accuracy" and (not dtypes or one["dtype"] in dtypes):
            found.setdefault((one["dtype"], one["input"]), []).append(one)
    rows = []
    for (dtype, name), every in found.items():
        depths = sorted({one["k"] for one in every})
        k = f"{depths[0]} to {depths[-1]}" if len(depths) > 1 else str(depths[0])
        ran = ", ".join(sorted({one["ran"] for one in every}))
        rows.append([dtype, name, k, ran, *(_share(every, field) for field in _ERRORS)])
    return markdown(["type", "input", "K", "ran", *_ERRORS.values()], rows)


def _share(records: Sequence[Mapping[str, Any]], field: str) -> str:
    shares = [one[field] / one["bound_u"] for one in records if field in one]
    return f"{max(shares):.2g}" if shares else ""
