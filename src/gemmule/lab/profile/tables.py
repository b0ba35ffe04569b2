"""Records of a profile, and its tables, which are made of records only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmule.core.problem import GemmProblem

from ..bench_tables import Table
from ..operation import Record
from .summary import Row

#: The tables of times in order: kind, title, and columns of text.
TIME_TABLES = (
    ("range", "time by range, on the host, us", 1),
    ("kernel", "time by kernel, us", 4),
    ("call", "time by CUDA API call, us", 1),
    ("copy", "time by copy, us", 1),
)
SIZES_TITLE = "sizes of copies, MB"
_TIMES = ["share", "count", "total", "average", "median", "min", "max"]


def records(rows: Sequence[Row], problem: GemmProblem) -> list[dict[str, Any]]:
    """Return a record ``profile`` for each row, times in microseconds."""
    return [_record(row, problem) for row in rows]


def times(records: Sequence[Record], kind: str) -> Table:
    """Return the times of a kind; kernels come with their device functions, grids and blocks."""
    first = ["kernel", "device function", "grid", "block"] if kind == "kernel" else [kind]
    rows = [[*_names(one), *_times(one)] for one in records if one["record"] == "profile" and one["kind"] == kind]
    return [*first, *_TIMES], rows


def sizes(records: Sequence[Record]) -> Table:
    """Return how much each way of copying moved, in MB, and how fast."""
    rows = []
    for one in records:
        if one["record"] == "profile" and one["kind"] == "copy":
            numbers = [one["bytes"], one["bytes"] / one["count"], one["min_bytes"], one["max_bytes"]]
            rate = f"{one['bytes'] / one['total_us'] / 1e3:.2f}" if one["total_us"] else ""
            rows.append([one["name"], str(one["count"]), *(f"{number / 1e6:.3f}" for number in numbers), rate])
    return ["copy", "count", "total", "average", "min", "max", "GB/s"], rows


def _names(record: Record) -> list[str]:
    if record["kind"] != "kernel":
        return [record["name"]]
    grid, block = (" ".join(map(str, record[field])) for field in ("grid", "block"))
    return [record["range"] or record["name"], record["name"], grid, block]


def _times(record: Record) -> list[str]:
    figures = (record[f"{name}_us"] for name in _TIMES[2:])
    return [f"{100 * record['share']:.1f} %", str(record["count"]), *(f"{figure:.2f}" for figure in figures)]


def _record(row: Row, problem: GemmProblem) -> dict[str, Any]:
    record: dict[str, Any] = {
        "record": "profile",
        "kind": row.kind,
        "name": row.name,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.a.dtype.name,
        "count": row.count,
        "total_us": round(row.total_ns / 1e3, 3),
        "average_us": round(row.average_ns / 1e3, 3),
        "median_us": round(row.median_ns / 1e3, 3),
        "min_us": round(min(row.durations_ns) / 1e3, 3),
        "max_us": round(max(row.durations_ns) / 1e3, 3),
        "share": round(row.share, 6),
    }
    if row.sizes:
        record |= {"bytes": sum(row.sizes), "min_bytes": min(row.sizes), "max_bytes": max(row.sizes)}
    if row.shape is not None:
        record |= {"range": row.within, "grid": list(row.shape[0]), "block": list(row.shape[1])}
    return record
