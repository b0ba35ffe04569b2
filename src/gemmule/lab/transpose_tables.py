"""Tables of measured transposes: what the command prints and the documentation shows, made from records only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .gemm_tables import Key, Table, interval_text, ratio_of, telling_fields

Record = Mapping[str, Any]

#: Kinds of records that say something of a transpose.
KINDS = ("transpose", "skipped", "failed", "check")
_PEERS = {"torch": "PyTorch", "cupy": "CuPy"}


def of_transposes(records: Iterable[Record]) -> list[Record]:
    """Return the records that say something of a transpose."""
    return [record for record in records if record["record"] in KINDS and "itemsize" in record]


def labels(records: Iterable[Record]) -> dict[Key, str]:
    """Return a short name for every kernel and config: the fields that tell its configs apart come in brackets."""
    configs: dict[str, dict[Key, None]] = {}
    for record in of_transposes(records):
        configs.setdefault(record["kernel"], {})[_key(record)] = None
    found = {}
    for name, keys in configs.items():
        fields = telling_fields([dict(key[1]) for key in keys])
        for key in keys:
            told = ",".join(f"{field}={dict(key[1]).get(field)}" for field in fields)
            found[key] = f"{name}[{told}]" if told else name
    return found


def _key(record: Record) -> Key:
    return record["kernel"], tuple(record["config"].items())


def name_of(record: Record, names: Mapping[Key, str]) -> str:
    """Return the name of a record's kernel by `labels`, and that its launches were in order where they need not be."""
    return names[_key(record)] + (", in order" if record.get("in_order") else "")


def size_text(record: Record) -> str:
    """Return the size in words: M x N, and the bytes of an element."""
    bytes_text = "1 byte" if record["itemsize"] == 1 else f"{record['itemsize']} bytes"
    return f"{record['m']} x {record['n']} of {bytes_text}"


def figures(records: Sequence[Record], *, with_size: bool = True, paired: bool = False) -> Table:
    """Return times, effective bandwidth, shares and ratios: one row for each kernel and size.

    Parameters
    ----------
    records : sequence of mapping
        Records of any kind; those of transposes are taken.
    with_size : bool
        Whether the rows say which transpose they are of.
    paired : bool
        Whether the ratio to the copy is the median of the paired times' ratios; else the ratio of the median times.
    """
    chosen = of_transposes(records)
    names = labels(records)
    peers = [name for name in _PEERS if any(f"{name}_ratio" in record for record in chosen)]
    header = ["kernel", *(["M x N"] if with_size else []), "min us", "mean us", "median us", "max us", "GB/s"]
    faster = any("faster_copy_ratio" in record for record in chosen)
    header += ["of theoretical", "/ copy", *(["/ faster copy"] if faster else [])]
    header += [f"x {_PEERS[name]}" for name in peers]
    noted = any(_note_of(record) for record in chosen)
    rows = []
    for record in chosen:
        row = [name_of(record, names), *([size_text(record)] if with_size else [])]
        if record["record"] == "transpose":
            row += [f"{record[f'{name}_us']:.1f}" for name in ("min", "mean", "median", "max")]
            row += [f"{record['gbps']:.0f}", f"{100 * record['peak_share']:.1f} %" if "peak_share" in record else ""]
            row.append(interval_text(record, paired=paired))
            if faster:
                row.append(f"{record['faster_copy_ratio']:.3f}" if "faster_copy_ratio" in record else "")
            row += [f"{record[f'{name}_ratio']:.2f}" if f"{name}_ratio" in record else "" for name in peers]
        row += [""] * (len(header) - len(row))
        rows.append([*row, *([_note_of(record)] if noted else [])])
    return [*header, *(["note"] if noted else [])], rows


def _note_of(record: Record) -> str:
    if record["record"] in ("skipped", "failed"):
        return f"{record['record']}: {record['reason']}"
    return f"WRONG: {record['reason']}" if record["record"] == "check" else ""


def ratios(records: Sequence[Record], *, paired: bool = False) -> Table:
    """Return the share of the copy's bandwidth, a row for each size and a column for each kernel."""
    names = labels(records)
    measured = [record for record in of_transposes(records) if "ratio" in record]
    columns = list(dict.fromkeys(name_of(record, names) for record in measured))
    cells = {
        (size_text(record), name_of(record, names)): f"{ratio_of(record, paired=paired):.3f}" for record in measured
    }
    sizes = list(dict.fromkeys(size for size, _ in cells))
    return ["M x N", *columns], [[size, *(cells.get((size, name), "") for name in columns)] for size in sizes]


def sweep(records: Sequence[Record]) -> dict[str, tuple[list[str], dict[str, list[float | None]]]]:
    """Return, for each size, the block shapes and each kernel's GB/s with them; of kernels measured with several."""
    found: dict[str, tuple[list[str], dict[str, list[float | None]]]] = {}
    measured = [r for r in of_transposes(records) if "gbps" in r and {"block_x", "block_y"} <= r["config"].keys()]
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
    """Return what the kernels ask of the L1 caches, beside their effective bandwidth: the study's second table."""
    names = labels(records)
    counted = [record for record in of_transposes(records) if "counts" in record]
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
