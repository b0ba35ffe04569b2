"""Measurements of transposes, compared with the device's own copy and with other libraries.

Every element of a result, or of sampled rows of a large one, must be the source's bit by bit, in memory that was
poisoned before, twice. A kernel that transposes in place does so in the outputs, into which the source is copied first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from gemmule.core.chip import Chip
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import TransposeProblem
from gemmule.core.spec import Choice

from .bench import Bench, Point
from .bench_plan import BenchPlan
from .bench_records import Record, all_us, circumstances, failed, ratio_fields, timed, times, us
from .device import BenchDevice, Operands, Work
from .products import Array
from .timing import Timing
from .transpose_operation import TRANSPOSE, effective_gbps
from .transposes import in_order, is_copy, problem_for, random_matrices

# Every byte differs between the two, so that elements that are not written are found.
_POISONS = (0x55, 0xAA)
#: Larger results are compared in so many rows.
_ROWS, _WHOLE_BELOW = 256, 1 << 26


class Baselines(Protocol):
    """The baselines of transposes."""

    def copy(self, problem: TransposeProblem, operands: Any) -> Work:
        """Return the device's own copy, from source to target of every buffer set in turn."""

    def part_copy(self, problem: TransposeProblem, operands: Any) -> tuple[Work, int] | None:
        """Return the device's copy of as many bytes as it copies fastest, and these; None where they are too few."""

    def peers(self, problem: TransposeProblem, operands: Any) -> Iterator[tuple[str, Work]]:
        """Yield other libraries' transposes of the same memory, with their names."""


class TransposeDevice(BenchDevice, Protocol):
    """A device that transposes are measured on."""

    def transposes(self) -> Baselines:
        """Return the baselines."""


@dataclasses.dataclass
class TransposePoint(Point):
    """A matrix in device memory, and its baselines: the copy, the copy of a part with its bytes, other libraries."""

    copy: Work = lambda: None
    part: tuple[Work, int] | None = None
    peers: dict[str, Work] = dataclasses.field(default_factory=dict)


class TransposeBench(Bench[TransposeProblem, TransposePoint]):
    """One run of measurements of transposes.

    Parameters
    ----------
    plan, device, chip, clock
        As of `Bench`.
    peers : bool
        Whether other libraries are measured too.
    in_order : bool
        Whether launches are serialized, also where the kernel allows them to overlap.
    """

    operation = TRANSPOSE

    def __init__(
        self,
        plan: BenchPlan[TransposeProblem],
        device: TransposeDevice,
        chip: Chip | None,
        *,
        peers: bool = True,
        in_order: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        # The copy that the first transpose is compared with loads the device too.
        super().__init__(plan, device, chip, clock, loaded_by=2)
        self._peers, self._in_order = peers, in_order

    def _variant(self, problem: TransposeProblem, choice: Choice) -> TransposeProblem:
        return problem_for(choice.spec, choice.config, self._device.arch, problem)

    def _inputs(self, problem: TransposeProblem) -> tuple[Mapping[str, Array], Array]:
        source = random_matrices(problem, self._plan.seed)
        return {"a": source}, source

    def _point(self, reference: Array, operands: Operands) -> TransposePoint:
        return TransposePoint(reference, operands)

    def _baselines(
        self,
        problem: TransposeProblem,
        point: TransposePoint,
        stack: contextlib.ExitStack,
        report: Callable[[str], None],
    ) -> Iterator[Record]:
        del stack
        baselines = self._device.transposes()
        point.copy = baselines.copy(problem, point.operands)
        point.part = baselines.part_copy(problem, point.operands)
        if self._peers:
            point.peers = dict(baselines.peers(problem, point.operands))
        for name, work in point.peers.items():
            report(name)
            if wrong := self._failure(problem, point, work):
                size = TRANSPOSE.text(problem)
                raise UnsupportedError(f"{name} transposes {size} wrongly here ({wrong}); omit it: --no-peers")
        yield from ()

    def _timed_record(self, problem: TransposeProblem, point: TransposePoint, choice: Choice) -> Record:
        launched = in_order(choice) if self._in_order else choice
        work = self._device.kernel(problem, launched, point.operands)
        if reason := self._failure(problem, point, work):
            return failed(TRANSPOSE, problem, choice, reason)
        parts = [point.part[0]] if point.part is not None else []
        timing = self._timer.measure([work, point.copy, *parts, *point.peers.values()], point.operands.sets)
        return {
            **timed(TRANSPOSE, problem, choice, self._chosen_by(choice)),
            **self._compared(problem, point, timing),
            **circumstances(point.operands, timing),
            **({"in_order": True} if self._in_order else {}),
        }

    def _compared(self, problem: TransposeProblem, point: TransposePoint, timing: Timing) -> Record:
        """Return the figures of a kernel, compared with the copies and with other libraries."""
        ours, copies, *others = timing.samples
        median, copy = statistics.median(ours), statistics.median(copies)
        rate = TRANSPOSE.rate(problem, median, self._chip)
        copy_gbps = effective_gbps(problem, copy)
        record = times(ours, timing.method) | rate
        record |= {"copy_us": us(copy), "copy_gbps": copy_gbps} | ratio_fields(ours, copies)
        if point.part is not None:
            part, part_bytes = statistics.median(others.pop(0)), point.part[1]
            part_gbps = round(2 * part_bytes / part / 1e9, 2)
            record |= {
                "part_copy_us": us(part),
                "part_copy_bytes": part_bytes,
                "part_copy_gbps": part_gbps,
                "faster_copy_ratio": round(rate["gbps"] / max(part_gbps, copy_gbps), 4),
            }
        if not is_copy(problem):
            for name, samples in zip(point.peers, others, strict=True):
                theirs = statistics.median(samples)
                record |= {f"{name}_us": us(theirs), f"{name}_ratio": round(theirs / median, 4)}
        return record | {"samples_us": all_us(ours), "copy_samples_us": all_us(copies)}

    def _failure(self, problem: TransposeProblem, point: TransposePoint, work: Work) -> str | None:
        """Run every buffer set into poisoned outputs; return what is wrong with the first and the last."""
        operands = point.operands
        for poison in _POISONS:
            operands.poison(poison)
            if problem.in_place:
                # The outputs hold the transposed matrices, and the copy covers every one.
                for _ in range(operands.sets):
                    point.copy()
            for _ in range(operands.sets):
                work()
            for index in sorted({0, operands.sets - 1}):
                got = operands.output(index)
                if place := _difference(point.reference, got, as_copy=is_copy(problem)):
                    row, column = place
                    return f"row {row} of the result is wrong, first at column {column}, in memory full of {poison:#x}"
        return None


def _difference(source: Array, result: Array, *, as_copy: bool) -> tuple[int, int] | None:
    """Return row and column of the first element that differs from what it should be, None if all are right."""
    if as_copy:
        result, expected_rows = result.reshape(source.shape), source
    else:
        # The rows of all matrices, one matrix after another.
        result, expected_rows = (x.reshape(-1, x.shape[-1]) for x in (result, np.swapaxes(source, -1, -2)))
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
