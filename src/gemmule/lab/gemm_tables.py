"""Tables of measured products: what the commands print and the documentation shows, made from records only."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .protocol import CONTROL_SPREAD_WITHIN, CONTROL_WITHIN
from .sizes import Size, neighbour

Record = Mapping[str, Any]
Key = tuple[str, tuple[tuple[str, int], ...]]
#: Header and rows.
Table = tuple[list[str], list[list[str]]]

#: Kinds of records that say something of a product.
PRODUCTS = ("gemm", "yardstick", "skipped", "failed", "check")
#: Kinds of records that name a kernel and its config.
NAMED = (*PRODUCTS, "counts", "transpose")
#: Units of rates, each with its factor from TFLOP/s.
RATES = {"TFLOP/s": 1.0, "GFLOP/s": 1e3}
_LIBRARIES = {"cublaslt": "cuBLASLt", "torch": "PyTorch"}


def rate_unit(records: Iterable[Record]) -> str:
    """Return the unit in which the rates of records are short: TFLOP/s, or GFLOP/s where all are below 1 TFLOP/s."""
    return "TFLOP/s" if any(record.get("tflops", 0) >= 1 for record in records) else "GFLOP/s"


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


def figures(records: Sequence[Record], *, with_size: bool = True, paired: bool = False, unit: str = "GFLOP/s") -> Table:
    """Return times, rates, shares, ratios and errors: one row for each kernel and size, the yardstick's first.

    Parameters
    ----------
    records : sequence of mapping
        Records of any kind; those of products are taken.
    with_size : bool
        Whether the rows say which product they are of.
    paired : bool
        Whether ratios are the median of the paired times' ratios; else the ratio of the median times.
    unit : str
        Unit of rates, a key of `RATES`.
    """
    names = labels(records)
    header = ["kernel", "min us", "mean us", "median us", "max us", unit, "of peak", "/ cuBLAS", "error u"]
    beyond_fma = any("fma_share" in record for record in records)
    if beyond_fma:
        header.insert(7, "of FMA peak")
    if with_size:
        header.insert(1, "M x N x K")
    measured = len(header)
    products = [record for record in records if is_product(record)]
    if any(note_of(record) for record in products):
        header.append("note")
    rows = []
    for record in products:
        row = [name_of(record, names), *([size_text(record)] if with_size else [])]
        if "median_us" not in record:
            row += [""] * (measured - len(row))
        else:
            row += [f"{record[f'{name}_us']:.1f}" for name in ("min", "mean", "median", "max")]
            row += [_rate(record["tflops"], unit), _percent(record.get("peak_share"))]
            row += [_percent(record.get("fma_share"))] if beyond_fma else []
            row += [_ratio_text(record, paired=paired), f"{record['error_u']:.2f}" if "error_u" in record else ""]
        rows.append([*row, *([note_of(record)] if "note" in header else [])])
    return header, rows


def is_product(record: Record) -> bool:
    """Whether a record says something of a product: checks may be of tests, and what was skipped a transpose."""
    return record["record"] in PRODUCTS and "k" in record


def note_of(record: Record) -> str:
    """Return what is to be said of a record that is not as it should be; nothing of one that is."""
    if record["record"] in ("skipped", "failed"):
        return f"{record['record']}: {record['reason']}"
    if record["record"] == "check":
        return f"WRONG: {record['reason']}"
    return str(record.get("failure", ""))


def ratios(records: Sequence[Record], *, paired: bool = False) -> Table:
    """Return ratios to the yardstick: rows are sizes, and layouts of a size that has several, columns kernels."""
    names = labels(records)
    measured = [record for record in records if record["record"] == "gemm" and "ratio" in record]
    columns = list(dict.fromkeys(name_of(record, names) for record in measured))
    cells = {
        (_product_text(record, measured), name_of(record, names)): f"{ratio_of(record, paired=paired):.3f}"
        for record in measured
    }
    sizes = list(dict.fromkeys(size for size, _ in cells))
    return ["M x N x K", *columns], [[size, *(cells.get((size, name), "") for name in columns)] for size in sizes]


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


def skipped(records: Sequence[Record]) -> list[str]:
    """Return a line for each kernel and reason why it did not take a product, with the sizes."""
    names = labels(records)
    sizes: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record["record"] == "skipped" and is_product(record):
            sizes.setdefault((name_of(record, names), record["reason"]), []).append(size_text(record))
    return [f"{name} skipped at {', '.join(where)}: {reason}" for (name, reason), where in sizes.items()]


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


def labels(records: Iterable[Record]) -> dict[Key, str]:
    """Return a short name for every kernel and config: the fields that tell its configs apart come in brackets."""
    configs: dict[str, dict[Key, None]] = {}
    for record in records:
        if record["record"] in NAMED and "config" in record:
            configs.setdefault(record["kernel"], {})[key_of(record)] = None
    found = {}
    for name, keys in configs.items():
        fields = telling_fields([dict(key[1]) for key in keys])
        for key in keys:
            told = ",".join(f"{field}={dict(key[1]).get(field)}" for field in fields)
            found[key] = f"{name}[{told}]" if told else name
    return found


def telling_fields(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return fields, in their order, that together tell all configs apart: each adds to those before it."""
    chosen: list[str] = []
    groups = 1
    for field in dict.fromkeys(field for config in configs for field in config):
        split = len({tuple(config.get(name) for name in (*chosen, field)) for config in configs})
        if split > groups:
            chosen.append(field)
            groups = split
    return chosen


def size_text(record: Record) -> str:
    """Return the size in words: M x N x K, and where matrices begin that are not aligned."""
    late = f", at {record['alignment']} bytes" if "alignment" in record else ""
    return f"{record['m']} x {record['n']} x {record['k']}{late}"


def product_of(record: Record) -> tuple[Any, ...]:
    """Return what tells a record's product from all others."""
    fields = ("m", "n", "k", "dtype", "precision", "out_dtype", "layout", "batch", "alignment", "own_transpose")
    return tuple(str(record.get(name)) for name in fields)


def layout_text(record: Record) -> str:
    """Return how A and B of a record lie in memory; where B is A itself, transposed, also that."""
    return f"{record['layout']} own transpose" if record.get("own_transpose") else str(record["layout"])


def _product_text(record: Record, records: Sequence[Record]) -> str:
    """Return the size in words, and the layout where records have several of it."""
    size = size_text(record)
    several = len({layout_text(other) for other in records if size_text(other) == size}) > 1
    return f"{size}, {layout_text(record)}" if several else size


def key_of(record: Record) -> Key:
    """Return what tells a kernel and config from all others."""
    return record["kernel"], tuple(record.get("config", {}).items())


def name_of(record: Record, names: Mapping[Key, str]) -> str:
    """Return the name of a record's kernel by `labels`, or of the yardstick."""
    name = record.get("kernel") or record["library"]
    if name in _LIBRARIES:
        return _LIBRARIES[name]
    return names.get(key_of(record), name)


def _rate(tflops: float, unit: str) -> str:
    return f"{tflops:.4g}" if unit == "TFLOP/s" else f"{tflops * RATES[unit]:.0f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def ratio_of(record: Record, *, paired: bool) -> float:
    """Return the median of the ratios of paired times if `paired` and there is one; else the ratio of the medians.

    The latter may lie outside of the interval of the paired ratios.
    """
    ratio: float = record.get("paired_ratio", record["ratio"]) if paired else record["ratio"]
    return ratio


def interval_text(record: Record, *, paired: bool) -> str:
    """Return a ratio, and between which values its paired ratios are."""
    low, high = record["paired_ratio_low"], record["paired_ratio_high"]
    return f"{ratio_of(record, paired=paired):.3f} ({low:.3f} to {high:.3f})"


def _ratio_text(record: Record, *, paired: bool) -> str:
    if record["record"] == "yardstick":
        return "1"
    return interval_text(record, paired=paired) if "ratio" in record else ""
