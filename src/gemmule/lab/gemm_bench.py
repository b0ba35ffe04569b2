"""Measurements of products, compared with the best algorithm of cuBLASLt and with PyTorch's call.

A product is compared with a reference of sampled rows. What the last timed sample wrote must have the same bits as what
was checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gemmule.core.chip import Chip
from gemmule.core.errors import CompileError, CompilerMissingError, DriverError, UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice

from . import protocol
from .accuracy import Accuracy
from .batches import reference_of
from .bench import Bench, Point
from .bench_plan import BenchPlan
from .bench_records import (
    BASELINE,
    TORCH,
    Record,
    all_us,
    circumstances,
    failed,
    ratio_fields,
    skipped,
    timed,
    times,
    us,
)
from .checked_outputs import NAN_BYTE, check, is_fair, same_bits
from .device import Baseline, BaselineAlgorithm, BenchDevice, Framework, Operands, Work
from .gemm_operation import GEMM
from .products import Array, gemm_problem, random_inputs
from .timing import estimate


@dataclasses.dataclass
class GemmPoint(Point):
    """A product in device memory, and the baselines' ways to compute it.

    Those of cuBLASLt go by their numbers, its best before its first; PyTorch's call is None where it is not measured.
    """

    baselines: dict[int, Work] = dataclasses.field(default_factory=dict)
    torch: Work | None = None


class GemmBench(Bench[GemmProblem, GemmPoint]):
    """One run of measurements of products.

    Parameters
    ----------
    plan, device, chip, clock
        As of `Bench`.
    baseline : Baseline or None
        The library to compare with; None measures without one.
    torch : Framework or None
        PyTorch, whose call is timed interleaved too.
    """

    operation = GEMM

    def __init__(
        self,
        plan: BenchPlan[GemmProblem],
        device: BenchDevice,
        chip: Chip | None,
        baseline: Baseline | None,
        torch: Framework | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(plan, device, chip, clock)
        self._baseline, self._torch = baseline, torch

    def about(self) -> Record:
        """Return the fields of the experiment block that describe the protocol, with the baselines' versions."""
        baselines = {BASELINE: self._baseline, TORCH: self._torch}
        return super().about() | {name: one.version for name, one in baselines.items() if one is not None}

    def _inputs(self, problem: GemmProblem) -> tuple[Mapping[str, Array], Any]:
        inputs = random_inputs(problem, self._plan.seed)
        return inputs, reference_of(problem, inputs, self._plan.seed, self._plan.rows)

    def _point(self, reference: Any, operands: Operands) -> GemmPoint:
        return GemmPoint(reference, operands)

    def _baselines(
        self, problem: GemmProblem, point: GemmPoint, stack: contextlib.ExitStack, report: Callable[[str], None]
    ) -> Iterator[Record]:
        if self._baseline is not None:
            report(BASELINE)
            try:
                algorithms = stack.enter_context(self._baseline.algorithms(problem, point.operands))
                record = self._yardstick_record(problem, point, algorithms)
            except UnsupportedError as error:
                self._raise_if_broken(problem, BASELINE, error)
                point.baselines = {}
                record = skipped(GEMM, problem, None, str(error), BASELINE)
            except DriverError as error:
                self._raise_if_broken(problem, BASELINE, error)
                raise
            yield record
        if self._torch is not None:
            try:
                point.torch = self._torch.work(problem, point.operands)
            except UnsupportedError as error:
                self._raise_if_broken(problem, TORCH, error)
                yield skipped(GEMM, problem, None, str(error), TORCH)

    def _yardstick_record(
        self, problem: GemmProblem, point: GemmPoint, algorithms: Sequence[BaselineAlgorithm]
    ) -> Record:
        """Find the baseline's best algorithm, and hold it against itself; sets the point's baselines."""
        works = [algorithm.work for algorithm in algorithms]
        listed = [dict(algorithm.description) for algorithm in algorithms]
        running = self._running(works, listed)
        sets = point.operands.sets
        survey = self._timer.measure([works[number] for number in running], sets, at_least=protocol.SURVEY_ROUNDS)
        medians = {}
        for number, samples in zip(running, survey.samples, strict=True):
            medians[number] = statistics.median(samples)
            listed[number]["median_us"] = us(medians[number])
        right: dict[int, Accuracy] = {}

        def is_right(number: int) -> bool:
            right[number], _ = check(problem, point.reference, point.operands, works[number])
            fair = is_fair(problem, right[number])
            if not fair:
                listed[number]["failure"] = right[number].failure
            return fair

        best = next((number for number in sorted(medians, key=medians.__getitem__) if is_right(number)), None)
        if best is None:
            reasons = "; ".join(str(one.get("refused", one.get("failure"))) for one in listed)
            raise UnsupportedError(f"no algorithm of the baseline is right: {reasons}")
        point.baselines = {best: works[best]}
        first_is_right = best == 0 or (0 in medians and 0 not in right and is_right(0))
        if first_is_right:
            point.baselines[0] = works[0]
        control = self._timer.measure([works[best], works[best]], sets)
        ratios = protocol.paired_ratios(*control.samples)
        first = {"first_us": us(medians[0]), **self._kernels(works[0], "first_kernels")} if first_is_right else {}
        return {
            "record": "yardstick",
            "library": BASELINE,
            **GEMM.fields(problem),
            **self._figures(problem, [*control.samples[0], *control.samples[1]], control.method),
            **first,
            "best_us": us(medians[best]),
            "best_is": best,
            "algorithms": listed,
            **self._kernels(works[best], "kernels"),
            "control": round(ratios.median, 4),
            "control_low": round(ratios.low, 4),
            "control_high": round(ratios.high, 4),
            "samples_us": all_us(control.samples[0]),
            "control_samples_us": all_us(control.samples[1]),
            **_errors(right[best]),
            **circumstances(point.operands, control),
        }

    def _running(self, works: Sequence[Work], listed: Sequence[Record]) -> list[int]:
        """Return the numbers of the works that run; notes why the others do not."""
        running = []
        for number, work in enumerate(works):
            try:
                # The first call of each loads its code.
                work()
                estimate(self._device, work)
            except UnsupportedError as error:
                listed[number]["refused"] = str(error)
            else:
                running.append(number)
        if not running:
            raise UnsupportedError("; ".join(dict.fromkeys(str(one["refused"]) for one in listed)))
        return running

    def _kernels(self, work: Work, field: str) -> Record:
        """Return the names of the device's kernels behind a call, or why they are not known: no reason to end a run."""
        try:
            return {field: self._device.kernel_names(work)}
        except DriverError as error:
            return {f"{field}_unknown": str(error)}

    def _figures(self, problem: GemmProblem, samples: Sequence[float], method: str) -> Record:
        """Return times, rate and share of the peak."""
        return times(samples, method) | GEMM.rate(problem, statistics.median(samples), self._chip)

    def _timed_record(self, problem: GemmProblem, point: GemmPoint, choice: Choice) -> Record:
        """Check a kernel, and time it with the baselines; what it writes meanwhile must be what was checked."""
        operands = point.operands
        work = self._device.kernel(problem, choice, operands)
        right, checked = check(problem, point.reference, operands, work)
        if right.failure is not None:
            return failed(GEMM, problem, choice, right.failure)
        works = [work, *point.baselines.values(), *([point.torch] if point.torch is not None else [])]
        timing = self._timer.measure(works, operands.sets, before_last=lambda: operands.poison(NAN_BYTE))
        # A sample of few calls leaves buffer sets out.
        for _ in range(operands.sets - timing.calls[0]):
            work()
        for index, output in zip((0, operands.sets - 1), checked, strict=True):
            if not same_bits(operands.output(index), output):
                reason = "the calls that were timed give other bits than those that were checked"
                return failed(GEMM, problem, choice, reason)
            if operands.sets == 1:
                break
        ours = timing.samples[0]
        record = timed(GEMM, problem, choice, self._chosen_by(choice)) | self._figures(problem, ours, timing.method)
        record |= {"samples_us": all_us(ours)}
        if point.torch is not None:
            record |= _torch_fields(ours, timing.samples[-1])
        record |= _yardstick_fields(ours, dict(zip(point.baselines, timing.samples[1:], strict=False)))
        return record | _errors(right) | circumstances(operands, timing)

    def _warm_up(self, report: Callable[[str], None]) -> None:
        """Load the device for seconds before the first figure, with a product that keeps all of it busy.

        Its clock is higher while it is cool. The kernels are compiled on the way.
        """
        report("warming up")
        if not self._plan.problems:
            return
        first, edge = self._plan.problems[0], protocol.WARM_UP_EDGE
        plain = gemm_problem(edge, edge, edge, first.a.dtype.name, first.d.dtype.name, first.layout)
        problem = dataclasses.replace(plain, precision=first.precision)
        every = (*self._plan.choices, *([self._plan.chosen(problem)] if self._plan.chosen else []))
        choices = [c for c in every if c.spec.why_not(c.product(problem)[0], self._device.arch, c.config) is None]
        if not choices or problem.bytes_min > self._device.memory_free():
            return
        inputs = random_inputs(problem, self._plan.seed)
        with contextlib.ExitStack() as stack:
            operands = stack.enter_context(self._device.operands(problem, inputs, 1))
            works: list[tuple[Work, Choice | str]] = []
            if self._baseline is not None:
                with contextlib.suppress(UnsupportedError):
                    algorithms = stack.enter_context(self._baseline.algorithms(problem, operands))
                    works = [(one.work, BASELINE) for one in algorithms]
            for choice in choices:
                try:
                    works.append((self._device.kernel(problem, choice, operands), choice))
                except DriverError as error:
                    self._raise_if_broken(problem, choice, error)
                except (CompileError, UnsupportedError) as error:
                    # A pack may lack the kernel of this product and have those of the products to measure.
                    if isinstance(error, CompilerMissingError) and choice in self._plan.choices:
                        raise
                    # It is reported in its turn.
                    continue
            for work, by in works:
                try:
                    work()
                    self._timer.warm(work)
                except (UnsupportedError, DriverError) as error:
                    # What follows is not to blame.
                    self._raise_if_broken(problem, by, error)
                    continue
                break


def _yardstick_fields(ours: Sequence[float], others: Mapping[int, Sequence[float]]) -> Record:
    """Return the fields of the baseline's algorithms that were timed interleaved with a kernel."""
    if not others:
        return {}
    best = min(others, key=lambda number: statistics.median(others[number]))
    found: Record = {
        "yardstick_best_us": us(statistics.median(others[best])),
        "yardstick_best_is": best,
        "yardstick_best_samples_us": all_us(others[best]),
        **ratio_fields(ours, others[best]),
    }
    if 0 in others:
        found["yardstick_first_us"] = us(statistics.median(others[0]))
        found["yardstick_first_samples_us"] = all_us(others[0])
    return found


def _torch_fields(ours: Sequence[float], theirs: Sequence[float]) -> Record:
    """Return the fields of PyTorch's call that was timed interleaved with a kernel."""
    ratios = ratio_fields(ours, theirs)
    return {
        "torch_us": us(statistics.median(theirs)),
        "torch_samples_us": all_us(theirs),
        "torch_ratio": ratios["ratio"],
        "torch_paired_ratio": ratios["paired_ratio"],
    }


def _errors(right: Accuracy) -> Record:
    """Return the errors of a result, or what is wrong with it."""
    if right.failure is not None:
        return {"failure": right.failure}
    return {
        "error_u": round(right.error_u, 4),
        "error_over_bound": round(right.over_bound, 6),
        "rms_over_bound": round(right.rms_over_bound, 6),
        "mean_squared_error": float(f"{right.mean_squared:.4g}"),
    }
