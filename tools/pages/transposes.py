"""Blocks of the documentation's pages that show measured transposes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.lab import bench_tables, transpose_tables
from gemmule.lab.records import read_records
from gemmule.lab.transpose_counts import with_counts
from gemmule.lab.transpose_operation import TRANSPOSE

from . import transpose_counters
from .markdown import markdown

Record = Mapping[str, Any]


def figures_block(results: Path, words: Sequence[str]) -> str:
    """Return the figures of a record file, of the kernels named only."""
    file, *kernels = words
    records = read_records(results / file)
    known = {record.get("kernel") for record in records}
    if wrong := set(kernels) - known:
        raise KeyError(f"{file} has no kernel {', '.join(sorted(wrong))}")
    chosen = [r for r in records if r["record"] == "transpose" and (not kernels or r["kernel"] in kernels)]
    return markdown(*bench_tables.figures(TRANSPOSE, chosen))


def ratios_block(results: Path, words: Sequence[str]) -> str:
    """Return shares of the copy's bandwidth, sizes by kernels."""
    (file,) = words
    return markdown(*bench_tables.ratios(TRANSPOSE, read_records(results / file)))


def sweep_block(results: Path, words: Sequence[str]) -> str:
    """Return the bandwidth of kernels by block shapes, a table for each size."""
    (file,) = words
    found = transpose_tables.sweep(read_records(results / file))
    tables = [
        f"{size}:\n\n{markdown(*transpose_tables.sweep_table(shapes, rates))}"
        for size, (shapes, rates) in found.items()
    ]
    return "\n\n".join(tables)


def throughput_block(results: Path, words: Sequence[str]) -> str:
    """Return what kernels ask of the L1 caches: the times of a file with the counts of another, or counts alone."""
    *times, counts_file = words
    counts = {_key(r): r["counts"] for r in read_records(results / counts_file) if r["record"] == "transpose_counts"}
    if times:
        (file,) = times
        measured = [r for r in read_records(results / file) if r["record"] == "transpose" and _key(r) in counts]
        records = [with_counts(record, counts[_key(record)]) for record in measured]
    else:
        records = [
            {**r, "record": "transpose"}
            for r in read_records(results / counts_file)
            if r["record"] == "transpose_counts"
        ]
    return markdown(*transpose_tables.throughput(records))


def counters_block(results: Path, words: Sequence[str]) -> str:
    """Return what launches ask of caches and memory, of several files: the virtual GPU's counts and the hardware's."""
    return markdown(*transpose_counters.counters_table([r for file in words for r in read_records(results / file)]))


def moved_block(results: Path, words: Sequence[str]) -> str:
    """Return the hardware's counts of a file over the times of another."""
    counts, times = words
    return markdown(*transpose_counters.throughput_table(read_records(results / counts), read_records(results / times)))


def _key(record: Record) -> str:
    return json.dumps([record["kernel"], record["config"], record["itemsize"]])


#: The blocks by name: each takes the folder of the record files, and the words behind its name.
BLOCKS: dict[str, Callable[[Path, Sequence[str]], str]] = {
    "transposes": figures_block,
    "transpose_ratios": ratios_block,
    "transpose_sweep": sweep_block,
    "transpose_throughput": throughput_block,
    "transpose_counters": counters_block,
    "transpose_moved": moved_block,
}
