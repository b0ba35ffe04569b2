"""Measures kernels over sizes beside a yardstick, and says of each whether it is right first.

For every size the inputs are made once and lie on the device as often as the protocol asks. Each kernel runs into
poisoned outputs and is held against a reference; only a kernel that is right is timed, in turns with the yardstick's
best algorithm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gemmule.core.chips import Chip
from gemmule.core.dtype import Kind
from gemmule.core.errors import CompileError, DriverError, UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.core.roofline import fastest_unit
from gemmule.core.spec import Choice

from . import protocol
from .accuracy import ROWS, Accuracy, Reference, accuracy, reference, sampled_rows
from .device import BenchDevice, Operands, Work, Yardstick, YardstickAlgorithm
from .products import Array, random_inputs
from .timing import Timing, load, measure

Record = dict[str, Any]

# Bytes that outputs are filled with before a run: NaN in every float; for integers one after the other, so that what
# was not written differs.
_NAN, _POISONS = 0xFF, (0x55, 0xAA)
#: The yardstick's name in records.
YARDSTICK = "cublaslt"


@dataclasses.dataclass(frozen=True)
class BenchPlan:
    """What is to be measured.

    Attributes
    ----------
    problems : tuple of GemmProblem
        The products, in order.
    choices : tuple of Choice
        The kernels, each with a config.
    seconds : float
        Time to spend on each kernel at each size.
    warm_up_seconds : float
        Load before the first figure.
    seed : int
        Of the random inputs.
    rows : int
        Rows of each result that are compared with the reference.
    """

    problems: tuple[GemmProblem, ...]
    choices: tuple[Choice, ...]
    seconds: float = 1.0
    warm_up_seconds: float = protocol.WARM_UP_SECONDS
    seed: int = 0
    rows: int = ROWS


@dataclasses.dataclass
class _Point:
    """A product on the device, and the yardstick's ways to compute it: its best, and the one it chooses first."""

    problem: GemmProblem
    reference: Reference
    operands: Operands
    best: Work | None = None
    first: Work | None = None


class Bench:
    """One run of measurements.

    Parameters
    ----------
    plan : BenchPlan
        What to measure.
    device : BenchDevice
        The device.
    chip : Chip or None
        Its facts, for the share of the peak; None where the table lacks it.
    yardstick : Yardstick or None
        The library to compare with; None measures without one.
    """

    def __init__(self, plan: BenchPlan, device: BenchDevice, chip: Chip | None, yardstick: Yardstick | None) -> None:
        self._plan, self._device, self._chip, self._yardstick = plan, device, chip, yardstick
        self._cold = True

    def about(self) -> Record:
        """Return what the experiment block says of the protocol."""
        about: Record = {
            "seed": self._plan.seed,
            "seconds_per_point": self._plan.seconds,
            "warm_up_s": self._plan.warm_up_seconds,
            "sample_s": protocol.SAMPLE_SECONDS,
            "l2_bytes": self._device.l2_bytes,
        }
        return about | ({YARDSTICK: self._yardstick.version} if self._yardstick is not None else {})

    def records(self, tell: Callable[[str], None] = lambda _: None) -> Iterator[Record]:
        """Measure, and yield each record as soon as it is there.

        Parameters
        ----------
        tell : callable
            Is told what is being done.

        Yields
        ------
        dict
            Of the kinds ``gemm``; ``yardstick``, the yardstick's own figures and its comparison with itself;
            ``skipped``, a kernel or the yardstick that does not take a product, with the reason; ``check``, a kernel
            that is wrong.
        """
        for problem in self._plan.problems:
            taken = []
            for choice in self._plan.choices:
                if reason := choice.spec.why_not(problem, self._device.arch, choice.config):
                    yield _skipped(problem, choice, reason)
                else:
                    taken.append(choice)
            if taken:
                yield from self._point(problem, taken, tell)

    def _point(self, problem: GemmProblem, choices: Sequence[Choice], tell: Callable[[str], None]) -> Iterator[Record]:
        sets = protocol.buffer_sets(problem.bytes_min, self._device.l2_bytes)
        needed, free = sets * problem.bytes_min, self._device.memory_free()
        if needed > free:
            reason = f"the operands take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU's memory are free"
            yield from (_skipped(problem, choice, reason) for choice in choices)
            return
        tell("inputs and reference")
        inputs = random_inputs(problem, self._plan.seed)
        rows = reference(problem, inputs, sampled_rows(problem.m, self._plan.seed, self._plan.rows))
        with contextlib.ExitStack() as stack:
            operands = stack.enter_context(self._device.operands(problem, inputs, sets))
            point = _Point(problem, rows, operands)
            if self._yardstick is not None:
                tell(YARDSTICK)
                try:
                    algorithms = stack.enter_context(self._yardstick.algorithms(problem, operands))
                    record = self._yardstick_record(point, algorithms)
                except UnsupportedError as error:
                    point.best = point.first = None
                    record = _skipped(problem, None, str(error))
                yield record
            for choice in choices:
                tell(choice.spec.name)
                yield self._kernel_record(point, choice)

    def _yardstick_record(self, point: _Point, algorithms: Sequence[YardstickAlgorithm]) -> Record:
        """Find the yardstick's best algorithm, and hold it against itself."""
        works = [algorithm.work for algorithm in algorithms]
        right = self._check(point, works[0])
        for work in works[1:]:
            # The first call of each loads its code.
            work()
        self._warm_up(works[0])
        sets = point.operands.sets
        survey = measure(self._device, works, sets, self._plan.seconds, at_least=1)
        medians = [statistics.median(samples) for samples in survey.samples]
        best = medians.index(min(medians))
        point.first, point.best = works[0], works[best]
        control = measure(self._device, [point.best, point.best], sets, self._plan.seconds)
        ratios = protocol.paired_ratios(*control.samples)
        listed = [
            {**algorithm.description, "median_us": _us(median)}
            for algorithm, median in zip(algorithms, medians, strict=True)
        ]
        figures = self._figures(point.problem, [*control.samples[0], *control.samples[1]])
        return {
            "record": "yardstick",
            "library": YARDSTICK,
            **_named(point.problem),
            "timing": control.method,
            **figures,
            "first_us": _us(medians[0]),
            "best_us": _us(medians[best]),
            "best_is": best,
            "algorithms": listed,
            **self._kernels(point.best),
            "control": round(ratios.median, 4),
            "control_low": round(ratios.low, 4),
            "control_high": round(ratios.high, 4),
            **_errors(right),
            **_circumstances(point.operands, control, 0),
        }

    def _kernels(self, work: Work) -> Record:
        """Return the names of the device's kernels behind a call, or why they are not known: no reason to end a run."""
        try:
            return {"kernels": self._device.kernel_names(work)}
        except DriverError as error:
            return {"kernels_unknown": str(error)}

    def _kernel_record(self, point: _Point, choice: Choice) -> Record:
        """Check a kernel, and time it beside the yardstick if it is right."""
        problem, sets = point.problem, point.operands.sets
        try:
            work = self._device.kernel(problem, choice, point.operands)
            right = self._check(point, work)
        except (CompileError, DriverError, UnsupportedError) as error:
            # A GPU that is of no more use says so to this call too, which ends the run.
            self._device.memory_free()
            return _failed(problem, choice, str(error))
        if right.failure is not None:
            return _failed(problem, choice, right.failure)
        self._warm_up(work)
        works = [work]
        if point.best is not None and point.first is not None:
            works += [point.best] if point.first is point.best else [point.best, point.first]
        timing = measure(self._device, works, sets, self._plan.seconds)
        ours = timing.samples[0]
        record: Record = {
            "record": "gemm",
            "kernel": choice.spec.name,
            "config": choice.config.as_dict(),
            **_named(problem),
            "chosen_by": "rung",
            "timing": timing.method,
            **self._figures(problem, ours),
            "samples_us": [_us(sample) for sample in ours],
        }
        if len(works) > 1:
            best, first = timing.samples[1], timing.samples[-1]
            ratios = protocol.paired_ratios(ours, best)
            record |= {
                "yardstick_first_us": _us(statistics.median(first)),
                "yardstick_best_us": _us(statistics.median(best)),
                "ratio": round(statistics.median(best) / statistics.median(ours), 4),
                "paired_ratio": round(ratios.median, 4),
                "paired_ratio_low": round(ratios.low, 4),
                "paired_ratio_high": round(ratios.high, 4),
            }
        return record | _errors(right) | _circumstances(point.operands, timing, 0)

    def _check(self, point: _Point, work: Work) -> Accuracy:
        """Run every buffer set once into poisoned outputs, and hold the result against the reference."""
        operands, kind = point.operands, point.problem.d.dtype.kind
        poisons = (_NAN,) if kind is Kind.FLOAT else _POISONS
        outputs = []
        for poison in poisons:
            operands.poison(poison)
            for _ in range(operands.sets):
                work()
            outputs.append(operands.output(0))
        right = accuracy(point.reference, outputs[0])
        if right.failure is None and not _same_bits(outputs[0], outputs[-1]):
            return dataclasses.replace(right, failure="elements were not written: they keep what was there before")
        if (
            right.failure is None
            and operands.sets > 1
            and not _same_bits(outputs[0], operands.output(operands.sets - 1))
        ):
            return dataclasses.replace(right, failure="two runs on the same inputs give different bits")
        return right

    def _warm_up(self, work: Work) -> None:
        """Load the device for seconds before the first figure: its clock is higher while it is cool."""
        if self._cold:
            load(self._device, [work], self._plan.warm_up_seconds)
            self._cold = False

    def _figures(self, problem: GemmProblem, samples: Sequence[float]) -> Record:
        """Return times, rate and share of the peak."""
        median = statistics.median(samples)
        rate = problem.flop / median
        figures: Record = {
            "min_us": _us(min(samples)),
            "mean_us": _us(statistics.fmean(samples)),
            "median_us": _us(median),
            "max_us": _us(max(samples)),
            "tflops": round(rate / 1e12, 4),
        }
        if self._chip is None:
            return figures
        try:
            unit, peak = fastest_unit(self._chip, problem.a.dtype, problem.b.dtype, problem.precision)
        except UnsupportedError:
            return figures
        figures |= {"peak_share": round(rate / peak, 4), "peak_unit": unit, "peak_tflops": peak / 1e12}
        if unit == "fp64_tensor" and self._chip.peaks.fp64 is not None:
            # What code without tensor cores could reach.
            fma = self._chip.peaks.fp64
            figures |= {"fma_share": round(rate / fma, 4), "fma_tflops": fma / 1e12}
        return figures


def _named(problem: GemmProblem) -> Record:
    return {
        "dtype": problem.a.dtype.name,
        "precision": problem.precision.value,
        "out_dtype": problem.d.dtype.name,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "layout": problem.layout,
        "batch": list(problem.batch),
    }


def _skipped(problem: GemmProblem, choice: Choice | None, reason: str) -> Record:
    """Return the record of a kernel, or of the yardstick, that does not take a product."""
    what = {"kernel": choice.spec.name, "config": choice.config.as_dict()} if choice else {"kernel": YARDSTICK}
    return {"record": "skipped", **what, **_named(problem), "reason": reason}


def _failed(problem: GemmProblem, choice: Choice, reason: str) -> Record:
    what = f"{choice.spec.name}[{choice.config}] {problem.m} x {problem.n} x {problem.k} {problem.a.dtype}"
    return {
        "record": "check",
        "what": f"{what} {problem.layout}",
        "passed": 0,
        "failed": 1,
        "kernel": choice.spec.name,
        "config": choice.config.as_dict(),
        **_named(problem),
        "reason": reason,
    }


def _errors(right: Accuracy) -> Record:
    if right.failure is not None:
        return {"failure": right.failure}
    return {
        "error_u": round(right.error_u, 4),
        "error_over_bound": round(right.over_bound, 6),
        "mean_squared_error": float(f"{right.mean_squared:.4g}"),
    }


def _circumstances(operands: Operands, timing: Timing, index: int) -> Record:
    return {
        "calls_per_sample": timing.calls[index],
        "buffer_sets": operands.sets,
        "buffer_bytes": operands.bytes,
        **timing.readings,
    }


def _same_bits(one: Array, other: Array) -> bool:
    return one is other or bool(np.array_equal(one.view(np.uint8), other.view(np.uint8)))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
