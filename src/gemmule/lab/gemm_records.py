"""Records of measured products: the fields of each kind."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.core.chip import Chip
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.core.roofline import fastest_unit
from gemmule.core.spec import Choice

from . import protocol
from .accuracy import Accuracy
from .device import Operands
from .timing import Timing

Record = dict[str, Any]

#: Bytes from which an address is not worth mentioning.
_ALIGNED = 16
#: The yardstick's name in records.
YARDSTICK = "cublaslt"
#: PyTorch's name in records.
TORCH = "torch"


def figures(problem: GemmProblem, samples: Sequence[float], chip: Chip | None) -> Record:
    """Return times, rate and share of the peak."""
    median = statistics.median(samples)
    rate = problem.flop / median
    found: Record = {
        "min_us": us(min(samples)),
        "mean_us": us(statistics.fmean(samples)),
        "median_us": us(median),
        "max_us": us(max(samples)),
        "tflops": round(rate / 1e12, 4),
    }
    if chip is None or problem.own_transpose:
        # Of a symmetric result not all is computed: the rate is no share of the peak.
        return found
    try:
        unit, peak = fastest_unit(chip, problem.a.dtype, problem.b.dtype, problem.precision)
    except UnsupportedError:
        return found
    found |= {"peak_share": round(rate / peak, 4), "peak_unit": unit, "peak_tflops": peak / 1e12}
    if unit == "fp64_tensor" and chip.peaks.fp64 is not None:
        # What code without tensor cores could reach.
        fma = chip.peaks.fp64
        found |= {"fma_share": round(rate / fma, 4), "fma_tflops": fma / 1e12}
    return found


def named(problem: GemmProblem) -> Record:
    """Return the fields that name a product."""
    return {
        "dtype": problem.a.dtype.name,
        "precision": problem.precision.value,
        "out_dtype": problem.d.dtype.name,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "layout": problem.layout,
        "batch": list(problem.batch),
        **({"alignment": problem.a.alignment} if problem.a.alignment < _ALIGNED else {}),
        **({"own_transpose": True} if problem.own_transpose else {}),
    }


def skipped(problem: GemmProblem, choice: Choice | None, reason: str, library: str = YARDSTICK) -> Record:
    """Return the record of a kernel, or of a library where there is no `choice`, that does not take a product."""
    what = {"kernel": choice.spec.name, "config": choice.config.as_dict()} if choice else {"kernel": library}
    return {"record": "skipped", **what, **named(problem), "reason": reason}


def failed(problem: GemmProblem, choice: Choice, reason: str, kind: str = "check") -> Record:
    """Return the record of a kernel that is wrong, or, of the kind ``failed``, that gave no result at all."""
    what = f"{choice.spec.name}[{choice.config}] {problem.m} x {problem.n} x {problem.k} {problem.a.dtype}"
    return {
        "record": kind,
        "what": f"{what} {problem.layout}",
        **({"passed": 0, "failed": 1} if kind == "check" else {}),
        "kernel": choice.spec.name,
        "config": choice.config.as_dict(),
        **named(problem),
        "reason": reason,
    }


def beside(ours: Sequence[float], others: Mapping[int, Sequence[float]]) -> Record:
    """Return what a kernel's record says of the yardstick's algorithms that were timed in the same turns."""
    if not others:
        return {}
    best = min(others, key=lambda number: statistics.median(others[number]))
    ratios = protocol.paired_ratios(ours, others[best])
    found: Record = {
        "yardstick_best_us": us(statistics.median(others[best])),
        "yardstick_best_is": best,
        "yardstick_best_samples_us": all_us(others[best]),
        "ratio": round(statistics.median(others[best]) / statistics.median(ours), 4),
        "paired_ratio": round(ratios.median, 4),
        "paired_ratio_low": round(ratios.low, 4),
        "paired_ratio_high": round(ratios.high, 4),
    }
    if 0 in others:
        found["yardstick_first_us"] = us(statistics.median(others[0]))
        found["yardstick_first_samples_us"] = all_us(others[0])
    return found


def beside_torch(ours: Sequence[float], theirs: Sequence[float]) -> Record:
    """Return what a kernel's record says of PyTorch's call that was timed in the same turns."""
    return {
        "torch_us": us(statistics.median(theirs)),
        "torch_samples_us": all_us(theirs),
        "torch_ratio": round(statistics.median(theirs) / statistics.median(ours), 4),
        "torch_paired_ratio": round(protocol.paired_ratios(ours, theirs).median, 4),
    }


def errors(right: Accuracy) -> Record:
    """Return the errors of a result, or what is wrong with it."""
    if right.failure is not None:
        return {"failure": right.failure}
    return {
        "error_u": round(right.error_u, 4),
        "error_over_bound": round(right.over_bound, 6),
        "rms_over_bound": round(right.rms_over_bound, 6),
        "mean_squared_error": float(f"{right.mean_squared:.4g}"),
    }


def circumstances(operands: Operands, timing: Timing, index: int) -> Record:
    """Return how a time was taken."""
    return {
        "calls_per_sample": timing.calls[index],
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
