"""Records of measured kernels: the fields that every operation has."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, TypeVar

from gemmule.core.spec import Choice

from . import protocol
from .device import Operands
from .operation import Operation
from .timing import Timing

Record = dict[str, Any]
P = TypeVar("P")

#: cuBLASLt's name in records, and PyTorch's.
BASELINE, TORCH = "cublaslt", "torch"


def skipped(operation: Operation[P], problem: P, choice: Choice | None, reason: str, library: str = "") -> Record:
    """Return the record of a kernel, or of a library where there is no `choice`, that does not take a problem."""
    what = {"kernel": choice.spec.name, "config": choice.config.as_dict()} if choice else {"kernel": library}
    return {"record": "skipped", **what, **operation.fields(problem), "reason": reason}


def failed(operation: Operation[P], problem: P, choice: Choice, reason: str, kind: str = "check") -> Record:
    """Return the record of a kernel that is wrong, or, of the kind ``failed``, that gave no result at all."""
    return {
        "record": kind,
        "what": f"{choice.spec.name}[{choice.config}] {operation.text(problem)}",
        **({"passed": 0, "failed": 1} if kind == "check" else {}),
        "kernel": choice.spec.name,
        "config": choice.config.as_dict(),
        **operation.fields(problem),
        "reason": reason,
    }


def broken_by(operation: Operation[P], problem: P, library: str, reason: str) -> Record:
    """Return the record of a library whose kernel broke the device."""
    what = {"what": f"{library} {operation.text(problem)}", "passed": 0, "failed": 1, "kernel": library}
    return {"record": "check", **what, **operation.fields(problem), "reason": reason}


def timed(operation: Operation[P], problem: P, choice: Choice, chosen_by: str) -> Record:
    """Return how the record of a kernel that was timed begins."""
    return {
        "record": operation.kind,
        "kernel": choice.spec.name,
        "config": choice.config.as_dict(),
        **operation.fields(problem),
        "chosen_by": chosen_by,
    }


def times(samples: Sequence[float], method: str) -> Record:
    """Return how samples were taken, and their times."""
    return {
        "timing": method,
        "min_us": us(min(samples)),
        "mean_us": us(statistics.fmean(samples)),
        "median_us": us(statistics.median(samples)),
        "max_us": us(max(samples)),
    }


def ratio_fields(ours: Sequence[float], theirs: Sequence[float]) -> Record:
    """Return the ratios of a baseline's times to a kernel's: more than 1 where the kernel is faster."""
    ratios = protocol.paired_ratios(ours, theirs)
    return {
        "ratio": round(statistics.median(theirs) / statistics.median(ours), 4),
        "paired_ratio": round(ratios.median, 4),
        "paired_ratio_low": round(ratios.low, 4),
        "paired_ratio_high": round(ratios.high, 4),
    }


def circumstances(operands: Operands, timing: Timing) -> Record:
    """Return how the first of the times was taken."""
    return {
        "calls_per_sample": timing.calls[0],
        "buffer_sets": operands.sets,
        "buffer_bytes": operands.bytes,
        **timing.readings,
    }


def all_us(samples: Sequence[float]) -> list[float]:
    """Return seconds as microseconds."""
    return [us(sample) for sample in samples]


def us(seconds: float) -> float:
    """Return seconds as microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)
