"""A run of measurements of kernels compared with baselines; only a kernel that is right is timed.

For every problem the inputs are made once and lie in device memory as often as the protocol asks. Each kernel runs into
poisoned outputs and is compared with a reference; then it is timed, interleaved with the baselines. What an operation
measures, and compares with, is in `gemm_bench` and `transpose_bench`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gemmule.core.chip import Chip
from gemmule.core.config import Config
from gemmule.core.errors import CompileError, CompilerMissingError, DriverError, UnsupportedError
from gemmule.core.problem import Problem
from gemmule.core.spec import Choice, KernelSpec

from . import protocol
from .bench_plan import BenchPlan
from .bench_records import Record, broken_by, failed, skipped
from .device import Operands
from .operation import Operation
from .paced import PacedTimer
from .products import Array

_NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

P = TypeVar("P", bound=Problem)


@dataclasses.dataclass
class Point:
    """A problem in device memory, and what results are compared with."""

    reference: Any
    operands: Operands


PointT = TypeVar("PointT", bound=Point)


class BrokenError(Exception):
    """The device is of no more use."""

    def __init__(self, record: Record, error: DriverError) -> None:
        super().__init__(record["reason"])
        detail = f"{error.detail}; {record['what']} broke the GPU, and nothing more can be measured"
        self.record, self.error = record, DriverError(error.call, error.status, detail)


class Bench(abc.ABC, Generic[P, PointT]):
    """One run of measurements.

    Parameters
    ----------
    plan : BenchPlan
        Plan of the measurement.
    device : BenchDevice
        The device.
    chip : Chip or None
        Its facts, for shares of its peaks; None where the table lacks it.
    clock : callable
        Gives seconds; finds pauses in which the device cools down.
    loaded_by : int
        Number of the works of the first measurement that load the device before it, where nothing else does.
    """

    #: The measured operation.
    operation: Operation[P]

    def __init__(
        self,
        plan: BenchPlan[P],
        device: Any,
        chip: Chip | None,
        clock: Callable[[], float] = time.perf_counter,
        loaded_by: int = 1,
    ) -> None:
        self._plan, self._device, self._chip = plan, device, chip
        self._timer = PacedTimer(device, plan.seconds, plan.warm_up_seconds, loaded_by=loaded_by, clock=clock)
        self._dispatched: tuple[KernelSpec, Config] | None = None

    def about(self) -> Record:
        """Return the fields of the experiment block that describe the protocol."""
        return {
            "seed": self._plan.seed,
            "seconds_per_point": self._plan.seconds,
            "warm_up_s": self._plan.warm_up_seconds,
            "sample_s": protocol.sample_seconds(self._plan.seconds),
            "l2_bytes": self._device.l2_bytes,
            "cuda": self._device.cuda,
        } | dict(self._plan.about)

    def records(self, report: Callable[[str], None] = lambda _: None) -> Iterator[Record]:
        """Measure, and yield each record as soon as it is there.

        Yields
        ------
        dict
            Records of the operation's kind; ``yardstick``, the baseline's own figures and its comparison with itself;
            ``skipped``, a kernel or library that does not take a problem, with the reason; ``failed``, a kernel that
            does not compile or run; ``check``, a kernel that is wrong.

        Raises
        ------
        CompilerMissingError
            If a kernel that was named must be compiled and cannot be; before the first record if that can be known.
            Where a call would fail with it, for products whose kernel it chooses, it is recorded.
        DriverError
            If a kernel broke the device; its ``check`` record comes first.
        """
        try:
            self._warm_up(report)
            for problem in self._plan.problems:
                yield from self._of_problem(problem, report)
        except BrokenError as broken:
            yield broken.record
            raise broken.error from broken

    def _choices(self, problem: P) -> Sequence[Choice]:
        """Return the kernels and configs to measure for a problem."""
        if self._plan.chosen is None:
            return self._plan.choices
        chosen = self._plan.chosen(problem)
        self._dispatched = (chosen.spec, chosen.config)
        others = (choice for choice in self._plan.choices if (choice.spec, choice.config) != self._dispatched)
        return [*others, chosen]

    def _chosen_by(self, choice: Choice) -> str:
        """Return how a kernel's config came about."""
        return "dispatch" if (choice.spec, choice.config) == self._dispatched else "rung"

    def _of_problem(self, problem: P, report: Callable[[str], None]) -> Iterator[Record]:
        """Measure a problem by every kernel that takes it."""
        taken: list[tuple[P, Choice]] = []
        for choice in self._choices(problem):
            own = self._variant(problem, choice)
            if reason := choice.spec.why_not(choice.product(own)[0], self._device.arch, choice.config):
                yield skipped(self.operation, own, choice, reason)
            else:
                taken.append((own, choice))
        if not taken:
            return
        sets = protocol.buffer_sets(problem.bytes_min, self._device.l2_bytes)
        needed, free = sets * problem.bytes_min, self._device.memory_free()
        if needed > free:
            reason = f"the operands take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU's memory are free"
            yield from (skipped(self.operation, own, choice, reason) for own, choice in taken)
            return
        report("inputs and reference")
        inputs, reference = self._inputs(problem)
        with contextlib.ExitStack() as stack:
            try:
                operands = stack.enter_context(self._device.operands(problem, inputs, sets))
            except DriverError as error:
                if error.status != _NO_MEMORY:
                    raise
                yield from (skipped(self.operation, own, choice, str(error)) for own, choice in taken)
                return
            point = self._point(reference, operands)
            yield from self._baselines(problem, point, stack, report)
            yield from self._kernel_records(taken, point, report)

    def _kernel_records(
        self, taken: Sequence[tuple[P, Choice]], point: PointT, report: Callable[[str], None]
    ) -> Iterator[Record]:
        """Check and time kernels, one after another."""
        for problem, choice in taken:
            report(choice.spec.name)
            yield self._kernel_record(problem, point, choice)

    def _kernel_record(self, problem: P, point: PointT, choice: Choice) -> Record:
        """Check a kernel, and time it interleaved with the baselines if it is right."""
        try:
            return self._timed_record(problem, point, choice)
        except UnsupportedError as error:
            return skipped(self.operation, problem, choice, str(error))
        except CompileError as error:
            if isinstance(error, CompilerMissingError) and self._chosen_by(choice) == "rung":
                raise
            return failed(self.operation, problem, choice, str(error), kind="failed")
        except DriverError as error:
            self._raise_if_broken(problem, choice, error)
            if error.status == _NO_MEMORY:
                return skipped(self.operation, problem, choice, str(error))
            return failed(self.operation, problem, choice, str(error), kind="failed")

    def _raise_if_broken(self, problem: P, by: Choice | str, error: Exception) -> None:
        """Raise if an error of a kernel, or of a library of that name, broke the device for good."""
        try:
            # A device that is of no more use fails this call too.
            self._device.memory_free()
        except DriverError as found:
            cause = error if isinstance(error, DriverError) else found
            if isinstance(by, str):
                record = broken_by(self.operation, problem, by, str(cause))
            else:
                record = failed(self.operation, problem, by, str(cause))
            raise BrokenError(record, cause) from error

    def _warm_up(self, report: Callable[[str], None]) -> None:
        """Load the device before the first figure; by default the first measurement does."""

    def _variant(self, problem: P, choice: Choice) -> P:
        """Return the problem as a kernel computes it."""
        del choice
        return problem

    @abc.abstractmethod
    def _inputs(self, problem: P) -> tuple[Mapping[str, Array], Any]:
        """Return random inputs, and what results are compared with."""

    @abc.abstractmethod
    def _point(self, reference: Any, operands: Operands) -> PointT:
        """Return a point without baselines."""

    @abc.abstractmethod
    def _baselines(
        self, problem: P, point: PointT, stack: contextlib.ExitStack, report: Callable[[str], None]
    ) -> Iterator[Record]:
        """Set the point's baselines; yield their records."""

    @abc.abstractmethod
    def _timed_record(self, problem: P, point: PointT, choice: Choice) -> Record:
        """Check and time a kernel."""
