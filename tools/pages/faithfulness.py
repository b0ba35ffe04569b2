"""How the virtual GPU compares with a GPU: tables from records of benchmarks/records/faithfulness.py and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]


def counters_table(records: Sequence[Record]) -> str:
    """Return a row for each counter: in how many launches both gave the same, and how far they were apart.

    What the virtual GPU does not count is left out.
    """
    by_counter: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record["record"] == "counts" and "virtual" in record:
            by_counter.setdefault(record["counter"], []).append((record["virtual"], record["hardware"]))
    rows = []
    for counter, pairs in by_counter.items():
        equal = sum(virtual == hardware for virtual, hardware in pairs)
        ratios = sorted(hardware / virtual for virtual, hardware in pairs if virtual and virtual != hardware)
        added = max((hardware for virtual, hardware in pairs if not virtual), default=0)
        apart = f"{ratios[0]:.2f} to {ratios[-1]:.2f} times" if ratios else ""
        if added:
            apart = f"up to {added:,.0f} where none were counted here"
        rows.append([f"`{counter}`", f"{equal} of {len(pairs)}", apart])
    return markdown(["counter of the hardware", "launches with equal counts", "hardware, in the others"], rows)


def bits_table(records: Sequence[Record]) -> str:
    """Return a row for each kernel and type: launches, elements, and how many of them had the same bits."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for record in records:
        if record["record"] == "check" and "sha256" in record:
            key = (record["kernel"], record["dtype"], record["out_dtype"])
            entry = found.setdefault(key, [0, 0, 0])
            entry[0] += 1
            entry[1] += record["passed"] + record["failed"]
            entry[2] += record["passed"]
    rows = [[f"`{kernel}`", dtype, out, f"{launches}", f"{elements:,}", f"{equal:,}"]
            for (kernel, dtype, out), (launches, elements, equal) in found.items()]  # fmt: skip
    return markdown(["kernel", "A and B", "result", "launches", "elements", "with equal bits"], rows)


def speed_table(records: Sequence[Record]) -> str:
    """Return a row for each kernel: seconds on the virtual GPU, alone and with what looks on."""
    header = ["kernel", "type", "M x N x K", "fused multiply-add by", "alone, s", "with checks, s", "times"]
    header += ["random schedule, s", "with counts, s", "and caches, s"]
    rows = [
        [
            f"`{record['kernel']}`",
            record["dtype"],
            " x ".join(map(str, record["shape"])),
            {"numba": "Numba", "numpy": "NumPy"}[record["fma"]],
            f"{record['seconds']:.2f}",
            f"{record['checks_seconds']:.2f}",
            f"{record['checks_seconds'] / record['seconds']:.1f}",
            f"{record['random_seconds']:.2f}" if "random_seconds" in record else "",
            f"{record['counts_seconds']:.2f}",
            f"{record['caches_seconds']:.2f}",
        ]
        for record in records
        if record["record"] == "virtual_gpu"
    ]
    return markdown(header, rows)
