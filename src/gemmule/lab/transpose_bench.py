"""Measures transposes over sizes beside the device's own copy, and says of each whether it is right first.

The matrix is made once and lies on the device as often as the protocol asks. Each kernel runs into poisoned outputs,
twice, and every element of the result, or of sampled rows of a large one, must be the source's bit by bit. A kernel
that transposes in place does so in the outputs, into which the source is copied before. Only a kernel that is right is
timed, in turns with the copy and with other libraries' transposes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gemmule.core.chip import Chip
from gemmule.core.errors import CompileError, CompilerMissingError, DriverError, UnsupportedError
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice

from . import protocol
from .device import Operands, Stopwatch, Work
from .paced import PacedTimer
from .transpose_records import Record, failed, skipped, timed
from .transposes import Array, in_order, is_copy, problem_for, random_matrix, transpose_of

# Every byte differs between the two, so that what is not written is seen.
_POISONS = (0x55, 0xAA)
#: Larger results are compared in so many rows.
_ROWS, _WHOLE_BELOW = 256, 1 << 26
_NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

#: Gives the kernel and config for a problem.
Chooser = Callable[[TransposeProblem], Choice]


class Yardsticks(Protocol):
    """What transposes are held against."""

    def copy(self, problem: TransposeProblem, operands: Any) -> Work:
        """Return the device's own copy, from source to target of every buffer set in turn."""

    def part_copy(self, problem: TransposeProblem, operands: Any) -> tuple[Work, int] | None:
        """Return the device's copy of as many bytes as it copies fastest, and these; None where they are too few."""

    def peers(self, problem: TransposeProblem, operands: Any) -> Iterator[tuple[str, Work]]:
        """Yield other libraries' transposes of the same memory, with their names."""


class TransposeDevice(Protocol):
    """A device that transposes are measured on; see `BenchDevice` for what is not said here."""

    name: str
    pci_bus_id: str
    arch: Any
    l2_bytes: int
    no_sensors: str | None
    cuda: str

    def memory_free(self) -> int:
        """Return the bytes that may be taken."""

    def operands(self, problem: Any, inputs: Mapping[str, Array], sets: int) -> AbstractContextManager[Any]:
        """Bring the source into the device's memory, `sets` times."""

    def kernel(self, problem: Any, choice: Choice, operands: Any) -> Work:
        """Return a kernel that goes from buffer set to buffer set."""

    def stopwatch(self, work: Work, calls: int, *, graph: bool) -> AbstractContextManager[Stopwatch]:
        """Give a stopwatch."""

    def kernel_names(self, work: Work) -> list[str]:
        """Return the names of the device's kernels that one call launches."""

    def readings(self) -> AbstractContextManager[Any]:
        """Sample clocks and watts."""

    def transposes(self) -> Yardsticks:
        """Return what transposes are held against."""


@dataclasses.dataclass(frozen=True)
class TransposePlan:
    """What is to be measured.

    Attributes
    ----------
    sizes : tuple of (int, int)
        Rows and columns of the sources, in order.
    itemsizes : tuple of int
        Bytes of an element, each at every size.
    choices : tuple of Choice
        The kernels, each with a config.
    chosen : callable or None
        Gives the kernel that a call would run, measured as well where it is not among `choices`.
    peers : bool
        Whether other libraries are measured too.
    seconds : float
        Time to spend on each kernel at each size.
    warm_up_seconds : float
        Load before the first figure.
    seed : int
        Of the random bits.
    in_order : bool
        Whether a launch begins only when the one in front of it has ended, also where the kernel allows otherwise.
    """

    sizes: tuple[tuple[int, int], ...]
    itemsizes: tuple[int, ...]
    choices: tuple[Choice, ...]
    chosen: Chooser | None = None
    peers: bool = True
    seconds: float = 0.3
    warm_up_seconds: float = protocol.WARM_UP_SECONDS
    seed: int = 0
    in_order: bool = False

    @property
    def points(self) -> int:
        """Steps of the run, for its progress."""
        return len(self.sizes) * len(self.itemsizes) * (len(self.choices) + (self.chosen is not None))


@dataclasses.dataclass
class _Point:
    """A matrix on the device, and what kernels are held against there."""

    m: int
    n: int
    itemsize: int
    source: Array
    operands: Operands
    copy: Work
    part: tuple[Work, int] | None
    peers: dict[str, Work]


class TransposeBench:
    """One run of measurements.

    Parameters
    ----------
    plan : TransposePlan
        What to measure.
    device : TransposeDevice
        The device.
    chip : Chip or None
        Its facts, for the share of the theoretical bandwidth; None where the table lacks it.
    clock : callable
        Gives seconds; finds pauses in which the device cools down.
    """

    def __init__(
        self,
        plan: TransposePlan,
        device: TransposeDevice,
        chip: Chip | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plan, self._device, self._chip = plan, device, chip
        # The copy beside the first transpose is load too.
        self._timer = PacedTimer(device, plan.seconds, plan.warm_up_seconds, loaded_by=2, clock=clock)

    def about(self) -> Record:
        """Return what the experiment block says of the protocol."""
        return {
            "seed": self._plan.seed,
            "seconds_per_point": self._plan.seconds,
            "warm_up_s": self._plan.warm_up_seconds,
            "sample_s": protocol.SAMPLE_SECONDS,
            "l2_bytes": self._device.l2_bytes,
            "cuda": self._device.cuda,
        }

    def records(self, tell: Callable[[str], None] = lambda _: None) -> Iterator[Record]:
        """Measure, and yield each record as soon as it is there.

        Yields
        ------
        dict
            Of the kinds ``transpose``; ``skipped``, a kernel that does not take a size; ``failed``, one that does not
            compile or run; ``check``, one that is wrong.

        Raises
        ------
        CompilerMissingError
            If a kernel must be compiled and cannot be.
        DriverError
            If a kernel broke the device; its ``check`` record comes first.
        """
        for itemsize in self._plan.itemsizes:
            for m, n in self._plan.sizes:
                yield from self._size(m, n, itemsize, tell)

    def _size(self, m: int, n: int, itemsize: int, tell: Callable[[str], None]) -> Iterator[Record]:
        problem = transpose_of(m, n, itemsize)
        sets = protocol.buffer_sets(problem.bytes_min, self._device.l2_bytes)
        choices = self._choices(problem)
        needed, free = sets * problem.bytes_min, self._device.memory_free()
        if needed > free:
            reason = f"the matrices take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of the GPU's memory are free"
            yield from (skipped(problem, choice, reason) for choice, _ in choices)
            return
        tell("random bits")
        source = random_matrix(m, n, itemsize, self._plan.seed)
        with contextlib.ExitStack() as stack:
            try:
                operands = stack.enter_context(self._device.operands(problem, {"a": source}, sets))
            except DriverError as error:
                if error.status != _NO_MEMORY:
                    raise
                yield from (skipped(problem, choice, str(error)) for choice, _ in choices)
                return
            yardsticks = self._device.transposes()
            copies = yardsticks.copy(problem, operands), yardsticks.part_copy(problem, operands)
            point = _Point(m, n, itemsize, source, operands, *copies, {})
            if self._plan.peers:
                point.peers = dict(yardsticks.peers(problem, operands))
            for name, work in point.peers.items():
                tell(name)
                if wrong := self._failure(point, problem, work):
                    raise UnsupportedError(
                        f"{name} transposes {m} x {n} wrongly here ({wrong}); leave it out: --no-peers"
                    )
            for choice, chosen_by in choices:
                tell(choice.spec.name)
                yield from self._kernel(point, choice, chosen_by)

    def _choices(self, problem: TransposeProblem) -> list[tuple[Choice, str]]:
        found = [(choice, "rung") for choice in self._plan.choices]
        if self._plan.chosen is not None:
            chosen = self._plan.chosen(problem)
            found = [pair for pair in found if (pair[0].spec, pair[0].config) != (chosen.spec, chosen.config)]
            found.append((chosen, "dispatch"))
        return found

    def _kernel(self, point: _Point, choice: Choice, chosen_by: str) -> Iterator[Record]:
        """Check a kernel, and time it beside the copy if it is right."""
        arch = self._device.arch
        problem = problem_for(choice.spec, choice.config, arch, point.m, point.n, point.itemsize)
        if reason := choice.spec.why_not(problem, arch, choice.config):
            yield skipped(problem, choice, reason)
            return
        try:
            launched = in_order(choice) if self._plan.in_order else choice
            work = self._device.kernel(problem, launched, point.operands)
            reason = self._failure(point, problem, work)
            if reason is not None:
                yield failed(problem, choice, reason)
                return
            parts = [point.part[0]] if point.part is not None else []
            timing = self._timer.measure([work, point.copy, *parts, *point.peers.values()], point.operands.sets)
        except CompilerMissingError:
            raise
        except UnsupportedError as error:
            yield skipped(problem, choice, str(error))
        except CompileError as error:
            yield failed(problem, choice, str(error), kind="failed")
        except DriverError as error:
            try:
                # A device that is of no more use says so to this call too.
                self._device.memory_free()
            except DriverError:
                yield failed(problem, choice, str(error))
                raise error from None
            yield failed(problem, choice, str(error), kind="failed")
        else:
            names = tuple(point.peers) if not is_copy(problem) else ()
            part_bytes = point.part[1] if point.part is not None else 0
            yield timed(problem, choice, chosen_by, timing, names, self._chip, part_bytes) | {
                "calls_per_sample": timing.calls[0],
                "buffer_sets": point.operands.sets,
                "buffer_bytes": point.operands.bytes,
                **timing.readings,
                **({"in_order": True} if self._plan.in_order else {}),
            }

    def _failure(self, point: _Point, problem: TransposeProblem, work: Work) -> str | None:
        """Run every buffer set into poisoned outputs; say what is wrong with the first and the last."""
        operands = point.operands
        for poison in _POISONS:
            operands.poison(poison)
            if problem.in_place:
                # What is transposed lies in the outputs, every one of which the copy reaches.
                for _ in range(operands.sets):
                    point.copy()
            for _ in range(operands.sets):
                work()
            for index in sorted({0, operands.sets - 1}):
                got = operands.output(index)
                if place := _difference(point.source, got, as_copy=is_copy(problem)):
                    row, column = place
                    return f"row {row} of the result is wrong, first at column {column}, in memory full of {poison:#x}"
        return None


def _difference(source: Array, result: Array, *, as_copy: bool) -> tuple[int, int] | None:
    """Return row and column of the first element that differs from what it should be, None if all are right."""
    if as_copy:
        result, expected_rows = result.reshape(source.shape), source
    else:
        expected_rows = source.T
    rows: Any = slice(None)
    if result.nbytes > _WHOLE_BELOW:
        # Fresh rows in every run, the first and the last among them.
        rng = np.random.default_rng()
        rows = np.unique(np.r_[0, len(result) - 1, rng.integers(0, len(result), _ROWS)])
    got, expected = (np.ascontiguousarray(x[rows]).view(np.uint8) for x in (result, expected_rows))
    if np.array_equal(got, expected):
        return None
    row, byte = (int(place[0]) for place in np.nonzero(got != expected))
    number = row if isinstance(rows, slice) else int(rows[row])
    return number, byte // source.itemsize
