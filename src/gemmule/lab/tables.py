"""What a record file says of itself: where it was made, and which checks it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def check_rows(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the checks of a record file, by file of tests."""
    totals: dict[str, list[int]] = {}
    for record in records:
        if record["record"] == "check":
            counts = totals.setdefault(record["what"].split("::")[0], [0, 0, 0])
            for place, name in enumerate(("passed", "failed", "skipped")):
                counts[place] += record.get(name, 0)
    rows = [[what, *map(str, counts)] for what, counts in totals.items()]
    return ["checks", "passed", "failed", "skipped"], rows


def experiment_line(records: Sequence[Mapping[str, Any]]) -> str:
    """Return where and when a record file was made, in a sentence."""
    block = records[0]
    packages = ", ".join(f"{name} {version}" for name, version in block["packages"].items())
    where = (
        f"{block['gpu']}, driver {block['driver']}" if "gpu" in block else f"{block['system']}, {block['cpus']} CPUs"
    )
    commit = block.get("commit", "unknown")
    return f"{where}, Python {block['python']}, {packages}; commit {commit}, {block['date']} UTC."
