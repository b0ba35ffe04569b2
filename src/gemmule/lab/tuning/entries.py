"""Entries of tables of tuned configs, from the records of kernels, and the provenance of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmule.dispatch.problem_key import ProblemKey
from gemmule.dispatch.tuned_file import Entry


def provenance(block: Mapping[str, Any], chip: str, **more: str) -> dict[str, str]:
    """Return where figures come from, as entries say it: chip, GPU, driver, versions, commit and date."""
    packages = block.get("packages", {})
    found = {
        "chip": chip,
        "gpu": block.get("gpu"),
        "driver": block.get("driver"),
        "cuda": block.get("cuda"),
        "packages": ", ".join(f"{name} {packages[name]}" for name in sorted(packages)),
        "cublaslt": block.get("cublaslt"),
        "commit": block.get("commit"),
        "date": block.get("date"),
        **more,
    }
    return {name: str(value) for name, value in found.items() if value}


def entry_of(key: ProblemKey, record: Mapping[str, Any], run: Mapping[str, str]) -> Entry:
    """Return the entry that the record of a kernel makes."""
    return Entry(
        key=key,
        kernel=record["kernel"],
        config=tuple(record["config"].items()),
        us=record["median_us"],
        samples=len(record["samples_us"]),
        ratio=record.get("ratio"),
        run=tuple(run.items()),
    )
