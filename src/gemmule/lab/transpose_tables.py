"""Tables of measured transposes alone: block shapes, and requests to the L1 caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .bench_tables import Table
from .kernel_labels import labels, name_of
from .transpose_operation import TRANSPOSE, size_text

Record = Mapping[str, Any]


def sweep(records: Sequence[Record]) -> dict[str, tuple[list[str], dict[str, list[float | None]]]]:
    """Return, for each size, the block shapes and each kernel's GB/s with them; of kernels measured with several."""
    found: dict[str, tuple[list[str], dict[str, list[float | None]]]] = {}
    measured = [r for r in TRANSPOSE.of(records) if "gbps" in r and {"block_x", "block_y"} <= r["config"].keys()]
    for size in dict.fromkeys(size_text(record) for record in measured):
        here = [record for record in measured if size_text(record) == size]
        of_kernels: dict[str, dict[str, float]] = {}
        for record in here:
            of_kernels.setdefault(record["kernel"], {})[_shape(record)] = record["gbps"]
        several = {kernel: by_shape for kernel, by_shape in of_kernels.items() if len(by_shape) > 1}
        shapes = list(dict.fromkeys(shape for by_shape in several.values() for shape in by_shape))
        if several:
            found[size] = shapes, {kernel: [one.get(shape) for shape in shapes] for kernel, one in several.items()}
    return found


def sweep_table(shapes: Sequence[str], rates: Mapping[str, Sequence[float | None]]) -> Table:
    """Return the GB/s of one size: a row for each kernel, a column for each block shape."""
    rows = [[kernel, *("" if rate is None else f"{rate:.0f}" for rate in row)] for kernel, row in rates.items()]
    return ["kernel, GB/s", *shapes], rows


def _shape(record: Record) -> str:
    return f"{record['config']['block_x']} x {record['config']['block_y']}"


def throughput(records: Sequence[Record]) -> Table:
    """Return the kernels' requests to the L1 caches, with their effective bandwidth: the study's second table."""
    names = labels(TRANSPOSE.of(records))
    counted = [record for record in TRANSPOSE.of(records) if "counts" in record]
    rates = ("gbps", "load_gbps", "store_gbps") if any("gbps" in record for record in counted) else ()
    header = ["kernel", "M x N", *(["GB/s", "load GB/s", "store GB/s"] if rates else [])]
    header += ["sectors a load", "sectors a store", "L1 hits", "bank conflicts"]
    rows = [
        [
            name_of(r, names),
            size_text(r),
            *(f"{r[rate]:.0f}" if rate in r else "" for rate in rates),
            *(f"{r['counts'][f'{way}_sectors_per_request']:.1f}" for way in ("load", "store")),
            f"{100 * r['counts']['l1_hit_rate']:.0f} %",
            f"{100 * r['counts']['bank_conflict_share']:.0f} %",
        ]
        for r in counted
    ]
    return header, rows
