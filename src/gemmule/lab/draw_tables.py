"""Tables of draws: what calls reach of the baselines on products that nothing was fitted to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .bench_tables import Table
from .gemm_operation import layout_text, size_text

Record = Mapping[str, Any]

#: Ratios below which products are counted.
LOW, VERY_LOW = 0.95, 0.80
_BASELINES = ("top heuristic", "best of 8", "PyTorch")
_HEADER = ["type", "shapes", *(f"vs {baseline}" for baseline in _BASELINES), "lowest", f"below {LOW}"]
_HEADER += [f"below {VERY_LOW:.2f}", "compared", "GEMMs"]


def first_ratio(record: Record) -> float | None:
    """Return the time of cuBLASLt's top heuristic over a call's; None where it was not measured."""
    first = record.get("yardstick_first_us")
    return None if first is None else float(first) / float(record["median_us"])


def line_of(record: Record) -> str:
    """Return a record of a product as a line; an empty one for the baseline's own record."""
    if record["record"] == "yardstick" or "m" not in record:
        return ""
    what = f"{size_text(record)} {layout_text(record)} {types_of(record)}"
    if record["record"] != "gemm":
        return f"{what}: {record.get('kernel', '')} {record['record']}: {record['reason']}"
    ratios = (first_ratio(record), record.get("ratio"), record.get("torch_ratio"))
    compared = "".join(
        f", {ratio:.3f} vs {baseline}" for baseline, ratio in zip(_BASELINES, ratios, strict=True) if ratio is not None
    )
    return f"{what}: {record['kernel']} {record['median_us']:.1f} us{compared}"


def types_of(record: Record) -> str:
    """Return types and precision of a record's product."""
    precision = f":{record['precision']}" if record["precision"] != "ieee" else ""
    out = f" to {record['out_dtype']}" if record["out_dtype"] != record["dtype"] else ""
    return f"{record['dtype']}{precision}{out}"


def is_odd(record: Record) -> bool:
    """Return whether a drawn product has odd extents."""
    return all(record[name] % 2 for name in "mnk")


def draw_rows(records: Sequence[Record]) -> Table:
    """Return a row for each type, of aligned and of odd shapes: geometric means, the lowest ratio, and shares.

    The lowest and the shares are of the ratio to cuBLASLt's top heuristic; the ratios are a baseline's time over a
    call's. The mean of that ratio comes with its standard error, by which draws of other GEMMs differ.
    """
    calls = [one for one in records if one["record"] == "gemm" and one.get("chosen_by") == "dispatch"]
    rows = []
    for types in dict.fromkeys(map(types_of, calls)):
        for odd in (False, True):
            group = [one for one in calls if types_of(one) == types and is_odd(one) == odd]
            if group:
                rows.append([types, "odd" if odd else "aligned", *_figures(group), str(len(group))])
    return _HEADER, rows


def _figures(group: Sequence[Record]) -> list[str]:
    first = sorted(ratio for one in group if (ratio := first_ratio(one)) is not None)
    best = [float(one["ratio"]) for one in group if "ratio" in one]
    torch = [float(one["torch_ratio"]) for one in group if "torch_ratio" in one]
    below = [f"{sum(ratio < limit for ratio in first) / len(first):.0%}" if first else "" for limit in (LOW, VERY_LOW)]
    means = [f"{statistics.geometric_mean(some):.3f}" if some else "" for some in (first, best, torch)]
    if len(first) > 1:
        means[0] += f" ± {_standard_error(first):.3f}"
    return [*means, f"{first[0]:.2f}" if first else "", *below, str(len(first))]


def _standard_error(ratios: Sequence[float]) -> float:
    """Return the standard error of a geometric mean."""
    return statistics.geometric_mean(ratios) * statistics.stdev(map(math.log, ratios)) / math.sqrt(len(ratios))
