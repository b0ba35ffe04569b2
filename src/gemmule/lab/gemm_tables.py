"""Tables and lines of measured products alone: speed-ups over cuBLASLt, odd sizes, controls."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .bench_tables import Table
from .gemm_operation import layout_text, product_of, size_text
from .kernel_labels import labels, name_of
from .operation import ratio_of
from .protocol import CONTROL_SPREAD_WITHIN, CONTROL_WITHIN
from .sizes import Size, neighbour

Record = Mapping[str, Any]


def speed_up_line(records: Sequence[Record]) -> str:
    """Return the speed-up over cuBLASLt of the fastest kernel of each product; empty where none was measured."""
    best: dict[tuple[Any, ...], float] = {}
    for record in records:
        if record["record"] == "gemm" and "ratio" in record:
            key = product_of(record)
            best[key] = max(best.get(key, 0.0), ratio_of(record, paired=True))
    if not best:
        return ""
    count = f"{len(best)} product{'s' * (len(best) != 1)}"
    mean = statistics.geometric_mean(best.values())
    return f"fastest kernels over cuBLASLt: {mean:.3f} (geometric mean of {count}), at least {min(best.values()):.3f}"


def neighbours(records: Sequence[Record]) -> Table:
    """Return what odd sizes reach of their aligned neighbours, and of the yardstick at the same size.

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
    header += ["neighbour's kernel", "/ cuBLAS"]
    rows = []
    for (dtype, layout, _, size), record in best.items():
        beside = best.get((dtype, layout, False, neighbour(size)))
        if beside is None or beside is record:
            continue
        row = [size_text(record), *([dtype] if kinds else []), name_of(record, names)]
        row += [f"{record['median_us']:.1f}", f"{record['tflops']:.1f}"]
        row += [f"{record['tflops'] / beside['tflops']:.3f}", name_of(beside, names)]
        rows.append([*row, f"{record['ratio']:.2f}" if "ratio" in record else ""])
    return header, rows


def controls(records: Iterable[Record]) -> list[str]:
    """Return a line for each size at which the yardstick is not itself within what the protocol allows."""
    return [
        f"control at {size_text(record)}: the yardstick is {record['control']:.3f} times itself "
        f"({record['control_low']:.3f} to {record['control_high']:.3f}); ratios there say no more than that"
        for record in records
        if record["record"] == "yardstick"
        and (
            abs(record["control"] - 1) > CONTROL_WITHIN
            or max(1 - record["control_low"], record["control_high"] - 1) > CONTROL_SPREAD_WITHIN
        )
    ]
