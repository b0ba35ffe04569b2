"""The tables that the package ships, made from record files: ``python -m gemmule.lab.tuning.shipped FILE …``.

Every product of the files gets the kernel and config with the best ratio to the yardstick. The table replaces the one
that is shipped for the chip of the files; each entry names the file that it comes from.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.chips import chip_named
from gemmule.core.errors import FileFormatError
from gemmule.dispatch.problem_key import ProblemKey, key_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.tuned_file import Entry, write_tuned
from gemmule.dispatch.tuned_table import shipped_file

from ..products import gemm_problem
from ..records import read_records

#: Bytes below which a record says how its matrices are aligned.
_ALIGNED = 16


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


def shipped_entries(files: Sequence[Path]) -> list[Entry]:
    """Return the best entry for every product that the files timed beside the yardstick.

    Raises
    ------
    FileFormatError
        If a file is no record of a GPU that the table of chips knows.
    """
    kernels = {spec.name for spec in REGISTRY}
    best: dict[tuple[str, ProblemKey], Entry] = {}
    for file in files:
        block, *records = read_records(file)
        if "gpu" not in block:
            raise FileFormatError(f"{file.name}: not a record of a GPU")
        run = provenance(block, chip_named(str(block["gpu"])).name, record=file.name)
        for record in records:
            if record["record"] != "gemm" or "ratio" not in record or "failure" in record:
                continue
            if record.get("own_transpose"):
                # What is fast for that is not for other products of the size.
                continue
            if record["kernel"] not in kernels:
                # A variant that was tried beside them.
                continue
            late = record.get("alignment", _ALIGNED) < _ALIGNED
            size = (record["m"], record["n"], record["k"])
            key = key_of(gemm_problem(*size, record["dtype"], record["out_dtype"], record["layout"], late=late))
            assert key is not None
            entry = entry_of(key, record, run)
            if (other := best.get((entry.chip, key))) is None or entry.is_better_than(other):
                best[entry.chip, key] = entry
    return list(best.values())


def main(files: Sequence[Path]) -> None:
    """Write the tables of the chips that the files are of."""
    entries = shipped_entries(files)
    for chip in {one.chip for one in entries}:
        write_tuned(shipped_file(chip), [one for one in entries if one.chip == chip])


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
