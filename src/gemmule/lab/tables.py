"""Provenance of a record file: where and when it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def experiment_line(records: Sequence[Mapping[str, Any]]) -> str:
    """Return where and when a record file was made, in a sentence."""
    block = records[0]
    packages = ", ".join(f"{name} {version}" for name, version in block["packages"].items())
    where = (
        f"{block['gpu']}, driver {block['driver']}" if "gpu" in block else f"{block['system']}, {block['cpus']} CPUs"
    )
    commit = block.get("commit", "unknown")
    return f"{where}, Python {block['python']}, {packages}; commit {commit}, {block['date']} UTC."
