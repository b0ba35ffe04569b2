"""Tables of measured kernels: what the commands print and the documentation shows, made from records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .kernel_labels import labels, name_of
from .operation import Operation, ratio_of

Record = Mapping[str, Any]
#: Header and rows.
Table = tuple[list[str], list[list[str]]]

_TIMES = ("min", "mean", "median", "max")


def figures(
    operation: Operation[Any], records: Sequence[Record], *, with_size: bool = True, paired: bool = False
) -> Table:
    """Return times, rates, shares and ratios: one row for each kernel and size, the baseline's first.

    Parameters
    ----------
    operation : Operation
        Measured records.
    records : sequence of mapping
        Records of any kind; those of the operation are shown.
    with_size : bool
        Whether the rows name their problem.
    paired : bool
        Whether ratios are the median of the paired times' ratios; else the ratio of the median times.
    """
    chosen = operation.of(records)
    names, columns = labels(chosen), operation.columns(chosen, paired)
    header = ["kernel", *([operation.size] if with_size else []), *(f"{name} us" for name in _TIMES)]
    header += [column.header for column in columns]
    has_notes = any(note_of(record) for record in chosen)
    rows = []
    for record in chosen:
        row = [name_of(record, names), *([operation.size_text(record)] if with_size else [])]
        if record["record"] in operation.timed:
            row += [f"{record[f'{name}_us']:.1f}" for name in _TIMES]
            row += [column.cell(record) for column in columns]
        row += [""] * (len(header) - len(row))
        rows.append([*row, *([note_of(record)] if has_notes else [])])
    return [*header, *(["note"] if has_notes else [])], rows


def note_of(record: Record) -> str:
    """Return why a record has no figures, or is no baseline; nothing of one that is as it should be."""
    if record["record"] in ("skipped", "failed"):
        return f"{record['record']}: {record['reason']}"
    if record["record"] == "check":
        return f"WRONG: {record['reason']}"
    return str(record.get("failure", ""))


def ratios(operation: Operation[Any], records: Sequence[Record], *, paired: bool = False) -> Table:
    """Return ratios to the baseline: rows are sizes, and layouts of a size that has several, columns kernels."""
    chosen = operation.of(records)
    names = labels(chosen)
    measured = [record for record in chosen if record["record"] == operation.kind and "ratio" in record]
    columns = list(dict.fromkeys(name_of(record, names) for record in measured))
    layouts: dict[str, set[str]] = {}
    for record in measured:
        layouts.setdefault(operation.size_text(record), set()).add(operation.layout_text(record))
    cells: dict[str, dict[str, str]] = {}
    for record in measured:
        size = operation.size_text(record)
        row = f"{size}, {operation.layout_text(record)}" if len(layouts[size]) > 1 else size
        cells.setdefault(row, {})[name_of(record, names)] = f"{ratio_of(record, paired=paired):.3f}"
    return [operation.size, *columns], [[size, *(row.get(name, "") for name in columns)] for size, row in cells.items()]


def skipped(operation: Operation[Any], records: Sequence[Record]) -> list[str]:
    """Return a line for each kernel and reason why it was skipped, with the sizes."""
    chosen = operation.of(records)
    names = labels(chosen)
    sizes: dict[tuple[str, str], list[str]] = {}
    for record in chosen:
        if record["record"] == "skipped":
            sizes.setdefault((name_of(record, names), record["reason"]), []).append(operation.size_text(record))
    return [f"{name} skipped at {', '.join(where)}: {reason}" for (name, reason), where in sizes.items()]
