"""Adds a profile up: by kernel, by call, by copy and by range."""

from __future__ import annotations

import bisect
import dataclasses
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from gemmule.executor.activity import Call, Copy, KernelRun, Profile, Range, Span

_S = TypeVar("_S", bound=Span)

#: Grid and block of a launch.
LaunchShape = tuple[tuple[int, int, int], tuple[int, int, int]]


@dataclasses.dataclass(frozen=True)
class Row:
    """All spans of one name."""

    kind: str  #: ``range``, ``kernel``, ``call`` or ``copy``.
    name: str  #: The device function, the function of CUDA, the way of the copy, or the range.
    durations_ns: tuple[int, ...]  #: Duration of each.
    share: float  #: Part of the time of all rows of this kind; 0 where they took none.
    within: str = ""  #: For a kernel the range that it was launched in: the kernel as gemmule calls it.
    shape: LaunchShape | None = None  #: For a kernel.
    sizes: tuple[int, ...] = ()  #: For copies: the bytes of each.

    @property
    def count(self) -> int:
        """Count."""
        return len(self.durations_ns)

    @property
    def total_ns(self) -> int:
        """Total duration, in nanoseconds."""
        return sum(self.durations_ns)

    @property
    def average_ns(self) -> float:
        """The mean."""
        return self.total_ns / self.count

    @property
    def median_ns(self) -> float:
        """As many took longer as took less."""
        return statistics.median(self.durations_ns)


def rows(profile: Profile) -> tuple[Row, ...]:
    """Return the durations of ranges, kernels, calls and copies, of each kind the longest first."""
    places = RangesOf(profile)
    return (
        *_rows("range", profile.ranges, lambda one: one.name),
        *_rows(
            "kernel",
            profile.kernels,
            lambda one: (one.name, places.of(one.correlation), (one.grid, one.block)),
            lambda row, runs: dataclasses.replace(
                row, within=places.of(runs[0].correlation), shape=(runs[0].grid, runs[0].block)
            ),
        ),
        *_rows("call", profile.calls, lambda one: one.name),
        *_rows(
            "copy",
            profile.copies,
            lambda one: one.name,
            lambda row, copies: dataclasses.replace(row, sizes=tuple(one.size for one in copies)),
        ),
    )


class RangesOf:
    """Finds the range in which something was queued: the innermost one round the call that carries its number."""

    def __init__(self, profile: Profile) -> None:
        self._calls: dict[int, Call] = {call.correlation: call for call in profile.calls}
        self._ranges: dict[int, list[Range]] = {}
        for one in sorted(profile.ranges, key=lambda one: (one.start_ns, -one.end_ns)):
            self._ranges.setdefault(one.thread, []).append(one)
        self._starts = {thread: [one.start_ns for one in ranges] for thread, ranges in self._ranges.items()}

    def of(self, correlation: int) -> str:
        """Return the name of the range, empty where there is none."""
        call = self._calls.get(correlation)
        if call is None or call.thread not in self._ranges:
            return ""
        # Ranges of a thread are nested or disjoint: the innermost open one.
        begun = bisect.bisect_right(self._starts[call.thread], call.start_ns)
        for one in reversed(self._ranges[call.thread][:begun]):
            if call.start_ns <= one.end_ns:
                return one.name
        return ""


def busy_ns(spans: Iterable[Span]) -> int:
    """Return the time in which at least one of the spans was under way."""
    total, end = 0, None
    for one in sorted(spans, key=lambda span: span.start_ns):
        start = one.start_ns if end is None else max(one.start_ns, end)
        total += max(one.end_ns - start, 0)
        end = one.end_ns if end is None else max(end, one.end_ns)
    return total


def window_ns(profile: Profile) -> int:
    """Return the time from the first start to the last end of anything."""
    spans: list[KernelRun | Copy | Call | Range] = [
        *profile.kernels,
        *profile.copies,
        *profile.calls,
        *profile.ranges,
    ]
    return max(one.end_ns for one in spans) - min(one.start_ns for one in spans) if spans else 0


def _rows(
    kind: str,
    spans: Sequence[_S],
    key: Callable[[_S], Hashable],
    finish: Callable[[Row, list[_S]], Row] = lambda row, _: row,
) -> list[Row]:
    groups: dict[Hashable, list[_S]] = {}
    for one in spans:
        groups.setdefault(key(one), []).append(one)
    total = sum(one.duration_ns for one in spans)
    found = []
    for group in groups.values():
        durations = tuple(one.duration_ns for one in group)
        row = Row(kind, group[0].name, durations, sum(durations) / total if total else 0.0)
        found.append(finish(row, group))
    # Ties keep their order.
    return sorted(found, key=lambda row: -row.total_ns)
