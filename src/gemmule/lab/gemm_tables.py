"""Lines of measured products alone: speed-ups over cuBLASLt, controls."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .gemm_operation import product_of, size_text
from .operation import ratio_of
from .protocol import CONTROL_SPREAD_WITHIN, CONTROL_WITHIN

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
    mean, least = statistics.geometric_mean(best.values()), min(best.values())
    return f"fastest kernels over cuBLASLt's best of 8: {mean:.3f} (geometric mean of {count}), at least {least:.3f}"


def controls(records: Iterable[Record]) -> list[str]:
    """Return a line for each size at which the baseline is not itself within what the protocol allows."""
    return [
        f"control at {size_text(record)}: the baseline is {record['control']:.3f} times itself "
        f"({record['control_low']:.3f} to {record['control_high']:.3f}); ratios there say no more than that"
        for record in records
        if record["record"] == "yardstick"
        and (
            abs(record["control"] - 1) > CONTROL_WITHIN
            or max(1 - record["control_low"], record["control_high"] - 1) > CONTROL_SPREAD_WITHIN
        )
    ]
