"""The aligned cells of a shipped table: the best config of each, beside cuBLASLt and the rate of the memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmule.core.chips import chip_named
from gemmule.core.errors import UnsupportedError
from gemmule.dispatch.problem_key import key_of
from gemmule.dispatch.tuned_file import Entry, read_tuned
from gemmule.dispatch.tuned_table import shipped_file
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import read_records
from gemmule.lab.sizes import Size
from gemmule.lab.tuning.cells import preset

from .markdown import markdown
from .searched import text_of

_ALIGNED = 16


def tuned_cells_block(results: Path, chip: str, dtype: str, table: Path | None = None) -> str:
    """Return the cells of a type in the table that is shipped for a chip, and their means.

    Parameters
    ----------
    results : Path
        Folder of the record files, from which the table was made.
    chip : str
        A name of the chip.
    dtype : str
        Type of A, B and the result; A and B lie in rows.
    table : Path, optional
        The table of tuned configurations; that of the package by default.

    Raises
    ------
    KeyError
        If the table has no cell of that type.
    """
    found = chip_named(chip)
    entries = {one.key: one for one in read_tuned(table or shipped_file(found.name))}
    records: dict[str, list[dict[str, Any]]] = {}
    rows, ratios, missing = [], {}, []
    for size in preset("cells"):
        problem = gemm_problem(*size, dtype, dtype, "nn")
        key = key_of(problem)
        entry = entries.get(key) if key is not None else None
        if entry is None or entry.ratio is None:
            missing.append(_text(size))
            continue
        name = dict(entry.run)["record"]
        if name not in records:
            records[name] = read_records(results / name)
        best, taken = _records_of(entry, records[name])
        # Bytes that must move, in microseconds at the rate that the memory has on paper.
        least_us = problem.bytes_min / found.memory_bandwidth * 1e6
        rows.append(
            [
                _text(size), f"{entry.us:.1f}", f"{best['tflops']:.0f}", f"{least_us / entry.us:.2f}",
                f"{least_us / best['yardstick_best_us']:.2f}", text_of(best, with_name=False), f"{entry.ratio:.3f}",
                "" if taken is None else "the same" if taken is best else f"{taken['ratio']:.3f}", name[:15],
            ]
        )  # fmt: skip
        ratios[size] = entry.ratio
    if not ratios:
        raise KeyError(f"the table of {found.name} has no cell in {dtype}")
    header = [
        "M x N x K", "us", "TFLOP/s", "of memory's rate", "cuBLASLt's", "best config", "vs cuBLASLt", "unsearched",
        "measured",
    ]  # fmt: skip
    return f"{markdown(header, rows)}\n\n{_means(ratios, missing)}"


def _records_of(entry: Entry, records: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the record that an entry was made from, and that of what is taken without a search, if there is one."""
    key = entry.key
    same = [
        one
        for one in records
        if one["record"] == "gemm"
        and (one["m"], one["n"], one["k"]) == (key.m, key.n, key.k)
        and (one["dtype"], one["layout"]) == (key.a_dtype, key.layout)
        and one.get("alignment", _ALIGNED) == _ALIGNED
        and "ratio" in one
        and not one.get("own_transpose")
    ]
    best = next((one for one in same if one["median_us"] == entry.us and one["ratio"] == entry.ratio), None)
    if best is None:
        raise UnsupportedError(f"{dict(entry.run)['record']} has no record of {key}, which the table has from there")
    return best, next((one for one in same if one.get("chosen_by") == "dispatch"), None)


def _means(ratios: dict[Size, float], missing: Sequence[str]) -> str:
    """Return the means of the ratios, and what was not measured."""
    least = min(ratios, key=ratios.__getitem__)
    below = sum(ratio < 1 for ratio in ratios.values())
    mean = statistics.geometric_mean(ratios.values())
    said = (
        f"{len(ratios)} of {len(ratios) + len(missing)} cells: geometric mean {mean:.3f}, "
        f"least {ratios[least]:.3f} at {_text(least)}, {below} below 1."
    )
    return f"{said} Not measured: {', '.join(missing)}." if missing else said


def _text(size: Size) -> str:
    return " x ".join(map(str, size))
