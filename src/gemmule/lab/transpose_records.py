"""Records of measured transposes: the fields of each kind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gemmule.core.chip import Chip
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice

from . import protocol
from .gemm_records import all_us, us
from .timing import Timing

Record = dict[str, Any]


def effective_gbps(problem: TransposeProblem, seconds: float) -> float:
    """Return the effective bandwidth in GB/s: bytes read and bytes written, in 10**9, over the time."""
    return round(problem.bytes_min / seconds / 1e9, 2)


def named(problem: TransposeProblem) -> Record:
    """Return the fields that name a transpose: m rows of n elements become n rows of m."""
    return {"itemsize": problem.itemsize, "m": problem.cols, "n": problem.rows}


def timed(
    problem: TransposeProblem,
    choice: Choice,
    chosen_by: str,
    timing: Timing,
    peers: Sequence[str],
    chip: Chip | None,
    part_bytes: int = 0,
) -> Record:
    """Return the record of a kernel that was timed in turns with the copy and with other libraries.

    Parameters
    ----------
    problem, choice, chosen_by
        What was measured, and why: ``rung`` or ``dispatch``.
    timing : Timing
        Samples of the kernel, of the copy, of the copy of a part where there is one, and of the libraries.
    peers : sequence of str
        The libraries' names.
    chip : Chip or None
        The chip's facts.
    part_bytes : int
        Bytes of the part, 0 where there is none.
    """
    ours, copies, *others = timing.samples
    part = others.pop(0) if part_bytes else None
    median, copy = statistics.median(ours), statistics.median(copies)
    ratios = protocol.paired_ratios(ours, copies)
    gbps = effective_gbps(problem, median)
    record: Record = {
        "record": "transpose",
        "kernel": choice.spec.name,
        "config": choice.config.as_dict(),
        **named(problem),
        "chosen_by": chosen_by,
        "timing": timing.method,
        "min_us": us(min(ours)),
        "mean_us": us(statistics.fmean(ours)),
        "median_us": us(median),
        "max_us": us(max(ours)),
        "gbps": gbps,
    }
    if chip is not None:
        peak = chip.memory_bandwidth / 1e9
        record |= {"peak_gbps": round(peak, 1), "peak_share": round(gbps / peak, 4)}
    record |= {
        "copy_us": us(copy),
        "copy_gbps": effective_gbps(problem, copy),
        "ratio": round(copy / median, 4),
        "paired_ratio": round(ratios.median, 4),
        "paired_ratio_low": round(ratios.low, 4),
        "paired_ratio_high": round(ratios.high, 4),
    }
    if part is not None:
        part_gbps = round(2 * part_bytes / statistics.median(part) / 1e9, 2)
        record |= {
            "part_copy_us": us(statistics.median(part)),
            "part_copy_bytes": part_bytes,
            "part_copy_gbps": part_gbps,
            "faster_copy_ratio": round(gbps / max(part_gbps, effective_gbps(problem, copy)), 4),
        }
    for name, samples in zip(peers, others, strict=False):
        record |= {
            f"{name}_us": us(statistics.median(samples)),
            f"{name}_ratio": round(statistics.median(samples) / median, 4),
        }
    return record | {"samples_us": all_us(ours), "copy_samples_us": all_us(copies)}


def skipped(problem: TransposeProblem, choice: Choice, reason: str) -> Record:
    """Return the record of a kernel that does not take a transpose."""
    return {
        "record": "skipped",
        "kernel": choice.spec.name,
        "config": choice.config.as_dict(),
        **named(problem),
        "reason": reason,
    }


def failed(problem: TransposeProblem, choice: Choice, reason: str, kind: str = "check") -> Record:
    """Return the record of a kernel that is wrong, or, of the kind ``failed``, that gave no result at all."""
    size = named(problem)
    what = f"{choice.spec.name}[{choice.config}] {size['m']} x {size['n']} of {size['itemsize']} bytes"
    return {
        "record": kind,
        "what": what,
        **({"passed": 0, "failed": 1} if kind == "check" else {}),
        "kernel": choice.spec.name,
        "config": choice.config.as_dict(),
        **size,
        "reason": reason,
    }
