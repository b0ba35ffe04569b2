"""Record files: JSON lines that begin with the experiment block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_records(folder: Path, experiment: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Path:
    """Write a new record file and return its path.

    Parameters
    ----------
    folder : Path
        Where it goes; made if it is missing.
    experiment : mapping
        The experiment block.
    records : iterable of mapping
        The records, each with its kind under ``record``.
    """
    gpu = re.sub(r"[^a-z0-9]+", "-", str(experiment.get("gpu", "host")).lower()).strip("-")
    path = folder / f"{experiment['date']}-{gpu}-{experiment.get('commit', 'unknown')}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        for record in (experiment, *records):
            file.write(json.dumps(record) + "\n")
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return every record of a file, the experiment block first."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
