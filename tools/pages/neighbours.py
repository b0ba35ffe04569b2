"""Odd sizes beside their aligned neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.lab.bench_tables import Table
from gemmule.lab.gemm_operation import layout_text, size_text
from gemmule.lab.kernel_labels import labels, name_of
from gemmule.lab.sizes import NEIGHBOURS, Size

Record = Mapping[str, Any]


def neighbours(records: Sequence[Record]) -> Table:
    """Return what odd sizes reach of their aligned neighbours, and of the baseline at the same size.

    Each row is of the fastest kernel and config measured at its size, and at the neighbour's.
    """
    names = labels(records)
    best: dict[tuple[str, str, bool, Size], Record] = {}
    for record in (r for r in records if r["record"] == "gemm" and "failure" not in r):
        size = (record["m"], record["n"], record["k"])
        key = (record["dtype"], layout_text(record), "alignment" in record, size)
        if key not in best or record["median_us"] < best[key]["median_us"]:
            best[key] = record
    # A column for the types where there are several.
    kinds = len({dtype for dtype, *_ in best}) > 1
    header = ["M x N x K", *(["types"] if kinds else []), "kernel", "median us", "TFLOP/s", "of the neighbour's"]
    header += ["neighbour's kernel", "vs cuBLASLt"]
    rows = []
    for (dtype, layout, _, size), record in best.items():
        beside = best.get((dtype, layout, False, _aligned(size)))
        if beside is None or beside is record:
            continue
        row = [size_text(record), *([dtype] if kinds else []), name_of(record, names)]
        row += [f"{record['median_us']:.1f}", f"{record['tflops']:.1f}"]
        row += [f"{record['tflops'] / beside['tflops']:.3f}", name_of(beside, names)]
        rows.append([*row, f"{record['ratio']:.2f}" if "ratio" in record else ""])
    return header, rows


def _aligned(size: Size) -> Size:
    """Return the aligned neighbour of a size: itself where no edge is one of `NEIGHBOURS`."""
    m, n, k = (NEIGHBOURS.get(extent, extent) for extent in size)
    return m, n, k
