"""The tables of `gemmule profile` on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.lab.profile.tables import SIZES_TITLE, TIME_TABLES, sizes, times

from .markdown import markdown


def profile_block(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of a record file for the documentation."""
    products = {(one["m"], one["n"], one["k"], one["dtype"]) for one in records if one["record"] == "profile"}
    blocks = []
    for m, n, k, dtype in sorted(products):
        of_product = [
            one
            for one in records
            if one["record"] == "profile" and (one["m"], one["n"], one["k"], one["dtype"]) == (m, n, k, dtype)
        ]
        tables = [(title, times(of_product, kind)) for kind, title, _ in TIME_TABLES]
        for title, (header, rows) in [*tables, (SIZES_TITLE, sizes(of_product))]:
            if rows:
                blocks.append(f"{m} x {n} x {k}, {dtype}: {title}\n\n{markdown(header, rows)}")
    return "\n\n".join(blocks)
