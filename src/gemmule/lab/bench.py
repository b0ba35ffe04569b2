"""Measures kernels over sizes beside a yardstick, and says of each whether it is right first.

For every size the inputs are made once and lie on the device as often as the protocol asks. Each kernel runs into
poisoned outputs and is held against a reference; only a kernel that is right is timed, in turns with the yardstick's
best algorithm. What the last timed sample wrote must have the same bits as what was checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from gemmule.core.chip import Chip
from gemmule.core.errors import CompileError, CompilerMissingError, DriverError, UnsupportedError
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice, Config, KernelSpec

from . import protocol
from .accuracy import Accuracy, Reference
from .batches import BatchReference, reference_of
from .bench_plan import BenchPlan
from .checked_outputs import NAN_BYTE, check, is_fair, same_bits
from .device import BenchDevice, Framework, Operands, Work, Yardstick, YardstickAlgorithm
from .gemm_records import (
    TORCH,
    YARDSTICK,
    Record,
    all_us,
    beside,
    beside_torch,
    circumstances,
    errors,
    failed,
    figures,
    named,
    skipped,
    us,
)
from .paced import PacedTimer
from .products import Array, gemm_problem, random_inputs
from .timing import estimate

_NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@dataclasses.dataclass
class Point:
    """A product on the device, and the baselines' ways to compute it.

    Those of cuBLASLt go by their numbers, its best before its first; PyTorch's call is None where it is not measured.
    """

    problem: GemmProblem
    reference: Reference | BatchReference
    operands: Operands
    yardsticks: dict[int, Work] = dataclasses.field(default_factory=dict)
    torch: Work | None = None


class BrokenError(Exception):
    """The device is of no more use."""

    def __init__(self, record: Record, error: DriverError) -> None:
        super().__init__(record["reason"])
        detail = f"{error.detail}; {record['what']} broke the GPU, and nothing more can be measured"
        self.record, self.error = record, DriverError(error.call, error.status, detail)


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
    torch : Framework or None
        PyTorch, whose call is timed in the same turns.
    clock : callable
        Gives seconds; finds pauses in which the device cools down.
    """

    def __init__(
        self,
        plan: BenchPlan,
        device: BenchDevice,
        chip: Chip | None,
        yardstick: Yardstick | None,
        torch: Framework | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plan, self._device, self._chip, self._yardstick, self._torch = plan, device, chip, yardstick, torch
        self._timer = PacedTimer(device, plan.seconds, plan.warm_up_seconds, clock=clock)
        self._dispatched: tuple[KernelSpec, Config] | None = None

    def about(self) -> Record:
        """Return what the experiment block says of the protocol."""
        about: Record = {
            "seed": self._plan.seed,
            "seconds_per_point": self._plan.seconds,
            "warm_up_s": self._plan.warm_up_seconds,
            "sample_s": protocol.sample_seconds(self._plan.seconds),
            "l2_bytes": self._device.l2_bytes,
            "cuda": self._device.cuda,
        }
        baselines = {YARDSTICK: self._yardstick, TORCH: self._torch}
        versions = {name: one.version for name, one in baselines.items() if one is not None}
        return about | versions | dict(self._plan.about)

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
            ``skipped``, a kernel or the yardstick that does not take a product, with the reason; ``failed``, a kernel
            that does not compile or run; ``check``, a kernel that is wrong.

        Raises
        ------
        CompilerMissingError
            If a kernel must be compiled and cannot be; before the first record if that can be known.
        DriverError
            If a kernel broke the device; its ``check`` record comes first.
        """
        yield from self._begun(tell)
        for problem in self._plan.problems:
            yield from self._of_problem(problem, tell)

    def _begun(self, tell: Callable[[str], None]) -> Iterator[Record]:
        """Warm up; yield nothing, but the record of a kernel that breaks the device."""
        tell("warming up")
        try:
            self._warm_up()
        except BrokenError as broken:
            yield broken.record
            raise broken.error from broken

    def _choices(self, problem: GemmProblem) -> Sequence[Choice]:
        """Return the kernels and configs to measure for a product."""
        if self._plan.chosen is None:
            return self._plan.choices
        chosen = self._plan.chosen(problem)
        self._dispatched = (chosen.spec, chosen.config)
        others = (choice for choice in self._plan.choices if (choice.spec, choice.config) != self._dispatched)
        return [*others, chosen]

    def _chosen_by(self, choice: Choice) -> str:
        """Return what a record says of how its config came about."""
        return "dispatch" if (choice.spec, choice.config) == self._dispatched else "rung"

    def _of_problem(self, problem: GemmProblem, tell: Callable[[str], None]) -> Iterator[Record]:
        """Measure a product by every kernel that takes it."""
        taken = []
        for choice in self._choices(problem):
            if reason := choice.spec.why_not(problem, self._device.arch, choice.config):
                yield skipped(problem, choice, reason)
            else:
                taken.append(choice)
        if taken:
            yield from self._point(problem, taken, tell)

    def _point(self, problem: GemmProblem, choices: Sequence[Choice], tell: Callable[[str], None]) -> Iterator[Record]:
        sets = protocol.buffer_sets(problem.bytes_min, self._device.l2_bytes)
        needed, free = sets * problem.bytes_min, self._device.memory_free()
        if needed > free:
            reason = f"the operands take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU's memory are free"
            yield from (skipped(problem, choice, reason) for choice in choices)
            return
        tell("inputs and reference")
        inputs = random_inputs(problem, self._plan.seed)
        expected = reference_of(problem, inputs, self._plan.seed, self._plan.rows)
        with contextlib.ExitStack() as stack:
            try:
                operands = stack.enter_context(self._device.operands(problem, inputs, sets))
            except DriverError as error:
                if error.status != _NO_MEMORY:
                    raise
                yield from (skipped(problem, choice, str(error)) for choice in choices)
                return
            point = Point(problem, expected, operands)
            if self._yardstick is not None:
                tell(YARDSTICK)
                try:
                    algorithms = stack.enter_context(self._yardstick.algorithms(problem, operands))
                    record = self._yardstick_record(point, algorithms)
                except UnsupportedError as error:
                    point.yardsticks = {}
                    record = skipped(problem, None, str(error))
                yield record
            if self._torch is not None:
                try:
                    point.torch = self._torch.work(problem, operands)
                except UnsupportedError as error:
                    yield skipped(problem, None, str(error), TORCH)
            yield from self._kernel_records(point, choices, tell)

    def _kernel_records(self, point: Point, choices: Sequence[Choice], tell: Callable[[str], None]) -> Iterator[Record]:
        """Check and time kernels, one after another, each beside the yardstick."""
        for choice in choices:
            tell(choice.spec.name)
            try:
                record = self._kernel_record(point, choice)
            except BrokenError as broken:
                yield broken.record
                raise broken.error from broken
            yield record

    def _yardstick_record(self, point: Point, algorithms: Sequence[YardstickAlgorithm]) -> Record:
        """Find the yardstick's best algorithm, and hold it against itself; sets the point's yardsticks."""
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
            right[number], _ = check(point.problem, point.reference, point.operands, works[number])
            fair = is_fair(point.problem, right[number])
            if not fair:
                listed[number]["failure"] = right[number].failure
            return fair

        best = next((number for number in sorted(medians, key=medians.__getitem__) if is_right(number)), None)
        if best is None:
            said = "; ".join(str(one.get("refused", one.get("failure"))) for one in listed)
            raise UnsupportedError(f"no algorithm of the yardstick is right: {said}")
        point.yardsticks = {best: works[best]}
        first_is_right = best == 0 or (0 in medians and 0 not in right and is_right(0))
        if first_is_right:
            point.yardsticks[0] = works[0]
        control = self._timer.measure([works[best], works[best]], sets)
        ratios = protocol.paired_ratios(*control.samples)
        first = {"first_us": us(medians[0]), **self._kernels(works[0], "first_kernels")} if first_is_right else {}
        return {
            "record": "yardstick",
            "library": YARDSTICK,
            **named(point.problem),
            "timing": control.method,
            **figures(point.problem, [*control.samples[0], *control.samples[1]], self._chip),
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
            **errors(right[best]),
            **circumstances(point.operands, control, 0),
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

    def _kernel_record(self, point: Point, choice: Choice) -> Record:
        """Check a kernel, and time it beside the yardstick if it is right."""
        problem = point.problem
        try:
            work = self._device.kernel(problem, choice, point.operands)
            right, checked = check(point.problem, point.reference, point.operands, work)
            if right.failure is not None:
                return failed(problem, choice, right.failure)
            return self._timed_record(point, choice, work, right, checked)
        except CompilerMissingError:
            raise
        except UnsupportedError as error:
            return skipped(problem, choice, str(error))
        except CompileError as error:
            return failed(problem, choice, str(error), kind="failed")
        except DriverError as error:
            self._raise_if_broken(problem, choice, error)
            if error.status == _NO_MEMORY:
                return skipped(problem, choice, str(error))
            return failed(problem, choice, str(error), kind="failed")

    def _raise_if_broken(self, problem: GemmProblem, choice: Choice, error: DriverError) -> None:
        """Raise if a kernel's error broke the device for good."""
        try:
            # A device that is of no more use says so to this call too.
            self._device.memory_free()
        except DriverError:
            raise BrokenError(failed(problem, choice, str(error)), error) from error

    def _timed_record(
        self, point: Point, choice: Choice, work: Work, right: Accuracy, checked: tuple[Array, Array]
    ) -> Record:
        """Time a kernel beside the yardstick; what it writes meanwhile must be what was checked."""
        problem, operands = point.problem, point.operands
        works = [work, *point.yardsticks.values(), *([point.torch] if point.torch is not None else [])]
        timing = self._timer.measure(works, operands.sets, before_last=lambda: operands.poison(NAN_BYTE))
        # A sample of few calls leaves buffer sets out.
        for _ in range(operands.sets - timing.calls[0]):
            work()
        for index, output in zip((0, operands.sets - 1), checked, strict=True):
            if not same_bits(operands.output(index), output):
                return failed(problem, choice, "the calls that were timed give other bits than those that were checked")
            if operands.sets == 1:
                break
        ours = timing.samples[0]
        record: Record = {
            "record": "gemm",
            "kernel": choice.spec.name,
            "config": choice.config.as_dict(),
            **named(problem),
            "chosen_by": self._chosen_by(choice),
            "timing": timing.method,
            **figures(problem, ours, self._chip),
            "samples_us": all_us(ours),
        }
        others = dict(zip(point.yardsticks, timing.samples[1:], strict=False))
        if point.torch is not None:
            record |= beside_torch(ours, timing.samples[-1])
        return record | beside(ours, others) | errors(right) | circumstances(operands, timing, 0)

    def _warm_up(self) -> None:
        """Load the device for seconds before the first figure, with a product that keeps all of it busy.

        Its clock is higher while it is cool. The kernels are compiled on the way.
        """
        if not self._plan.problems:
            return
        first, edge = self._plan.problems[0], protocol.WARM_UP_EDGE
        problem = gemm_problem(edge, edge, edge, first.a.dtype.name, first.d.dtype.name, first.layout)
        every = (*self._plan.choices, *([self._plan.chosen(problem)] if self._plan.chosen else []))
        choices = [c for c in every if c.spec.why_not(problem, self._device.arch, c.config) is None]
        if not choices or problem.bytes_min > self._device.memory_free():
            return
        inputs = random_inputs(problem, self._plan.seed)
        with contextlib.ExitStack() as stack:
            operands = stack.enter_context(self._device.operands(problem, inputs, 1))
            works: list[tuple[Work, Choice | None]] = []
            if self._yardstick is not None:
                with contextlib.suppress(UnsupportedError):
                    algorithms = stack.enter_context(self._yardstick.algorithms(problem, operands))
                    works = [(one.work, None) for one in algorithms]
            for choice in choices:
                try:
                    works.append((self._device.kernel(problem, choice, operands), choice))
                except CompilerMissingError:
                    raise
                except DriverError as error:
                    self._raise_if_broken(problem, choice, error)
                except (CompileError, UnsupportedError):
                    # It is told of at its turn.
                    continue
            for work, by in works:
                try:
                    work()
                    self._timer.warm(work)
                except UnsupportedError:
                    continue
                except DriverError as error:
                    if by is not None:
                        self._raise_if_broken(problem, by, error)
                    continue
                break
