"""Records of several files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.lab.records import read_records

Record = Mapping[str, Any]


def together(results: Path, files: Sequence[str]) -> list[Record]:
    """Return the records of files, the first one's experiment block first; all must be of one GPU, or of none."""
    all_records = [read_records(results / file) for file in files]
    gpus = {records[0]["gpu"] for records in all_records if "gpu" in records[0]}
    if len(gpus) != 1:
        raise KeyError(f"{', '.join(files)}: files of one GPU are wanted, not of {', '.join(sorted(gpus)) or 'none'}")
    experiment = next(records[0] for records in all_records if "gpu" in records[0])
    return [experiment, *(record for records in all_records for record in records[1:])]
