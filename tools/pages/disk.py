"""Tables of products from files, run by run, and of the disk alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]


def file_runs_table(records: Sequence[Record]) -> str:
    """Return each run of products from files to a file: what was expected, and the disk alone before and after."""
    rows = [
        [
            f"{r['m']} x {r['n']} x {r['k']} {r['dtype']}",
            f"{one['stream_s']:.2f}",
            f"{one['predicted_s']:.2f}",
            "{:.2f} to {:.2f}".format(*one["between_s"]),
            f"{100 * (one['predicted_s'] / one['stream_s'] - 1):+.1f} %",
            f"{r['disk']['read_s']:.2f}, {r['disk_after']['read_s']:.2f}",
            f"{r['disk']['both_s']:.2f}, {r['disk_after']['both_s']:.2f}",
        ]
        for r in records
        if r["record"] == "stream" and "disk_after" in r
        for one in r["samples"]
    ]
    header = [
        "product", "streaming, s", "expected, s", "as the disk's rate varied", "difference",
        "disk alone: reads, before and after, s", "reads and writes at once, s",
    ]  # fmt: skip
    return markdown(header, rows)


def disk_ways_table(records: Sequence[Record]) -> str:
    """Return the rates of a disk by the way of reading and writing, nothing being computed."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    usual = []
    for r in records:
        if r["record"] != "stream" or r.get("source") != "disk":
            continue
        if r["what"] == "usual":
            usual.append(r["bytes_per_s"])
        past = "past the page cache" if r.get("direct") else "page cache"
        if r["what"] == "read":
            groups.setdefault(("reads", past, f"{r['threads']} x {r['request'] >> 20} MiB"), []).append(
                f"{r['bytes_per_s'] / 1e9:.2f}"
            )
        elif r["what"] == "write" and "reserve_s" in r:
            groups.setdefault(("writes", _WRITES[r["how"]], f"{r['threads']} x {r['request'] >> 20} MiB"), []).append(
                f"{r['bytes_per_s'] / 1e9:.2f}"
            )
        elif r["what"] == "both":
            key = f"reads ({past}), and half as many writes", _WRITES[r["how"]], f"{r['threads']} x 4 MiB each"
            moved = r["reading"]["bytes_per_s"] * r["reading"]["seconds"] * 1.5
            groups.setdefault(key, []).append(f"{moved / r['seconds'] / 1e9:.2f}")
    rows = [[*key, ", ".join(rates)] for key, rates in groups.items()]
    if usual:
        spread = f"{min(usual) / 1e9:.2f} to {max(usual) / 1e9:.2f}, median {statistics.median(usual) / 1e9:.2f}"
        rows.append(["reads, repeated all along", "page cache", "8 x 4 MiB", spread])
    return markdown(["what", "how", "threads and requests", "GB/s"], rows)


_WRITES = {
    "cached": "page cache, stored at the end",
    "early": "page cache, stored at once",
    "direct": "past the page cache",
}
