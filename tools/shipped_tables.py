"""The tables that the package ships, made from record files: ``python tools/shipped_tables.py FILE …``.

Every product of the files gets the kernel and config with the best ratio to the baseline; where there are records of
layers behind kernels of PyTorch's (``behind``), the best of these, since models run it so. The table replaces the one
that is shipped for the chip of the files; each entry names the file that it comes from.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gemmule.core.chips import chip_named
from gemmule.core.errors import FileFormatError
from gemmule.dispatch.problem_key import ProblemKey, key_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.tuned_file import Entry, write_tuned
from gemmule.dispatch.tuned_table import shipped_file
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records
from gemmule.lab.tuning.entries import entry_of, provenance

#: Bytes below which a record says how its matrices are aligned.
_ALIGNED = 16


def shipped_entries(files: Sequence[Path]) -> list[Entry]:
    """Return the best entry for every product that the files timed beside the baseline.

    Raises
    ------
    FileFormatError
        If a file is no record of a GPU that the table of chips knows.
    """
    kernels = {spec.name for spec in REGISTRY}
    # Whether it was timed behind another kernel, and the entry.
    best: dict[tuple[str, ProblemKey], tuple[bool, Entry]] = {}
    for file in files:
        block, *records = read_records(file)
        if "gpu" not in block:
            raise FileFormatError(f"{file.name}: not a record of a GPU")
        run = provenance(block, chip_named(str(block["gpu"])).name, record=file.name)
        for record in records:
            if record["record"] not in ("gemm", "layer") or "ratio" not in record or "failure" in record:
                continue
            if record.get("own_transpose"):
                # What is fast for that is not for other products of the size.
                continue
            if record["kernel"] not in kernels:
                # A variant that was tried beside them.
                continue
            misaligned = record.get("alignment", _ALIGNED) < _ALIGNED
            size = (record["m"], record["n"], record["k"])
            key = key_of(
                gemm_problem(*size, record["dtype"], record["out_dtype"], record["layout"], misaligned=misaligned)
            )
            assert key is not None
            entry = entry_of(key, record, run)
            behind = "behind" in record
            other = best.get((entry.chip, key))
            if other is None or (behind, entry.is_better_than(other[1])) > (other[0], False):
                best[entry.chip, key] = behind, entry
    return [entry for _, entry in best.values()]


def main(files: Sequence[Path]) -> None:
    """Write the tables of the chips that the files are of."""
    entries = shipped_entries(files)
    for chip in {one.chip for one in entries}:
        write_tuned(shipped_file(chip), [one for one in entries if one.chip == chip])


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
