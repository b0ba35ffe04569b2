"""A profile as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: JSON in the trace event format.

The host is a process whose threads have a track for their ranges and one for their calls; each GPU is a process with a
track for every stream's kernels and one for its copies. Arrows lead from a call to what it queued.

The format allows slices of a track to follow or to contain one another, and nothing else: Perfetto loses what begins in
a slice and ends behind it. Slices that overlap like that stand in a further track of the same name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gemmule.executor.activity import Call, Copy, KernelRun, Profile, Span

from ..whole_files import write_whole

Event = dict[str, Any]
_S = TypeVar("_S", bound=Span)

#: Process of the host's tracks; a GPU's is the next but its number.
HOST = 1
_FIRST_GPU = 2
# Readers take the track with the number of a process to be its main thread.
_FIRST_TRACK = 1001


def trace(profile: Profile, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile in the trace event format.

    Parameters
    ----------
    about : mapping
        Metadata of the file, e.g. the experiment block.
    """
    tracks = _Tracks()
    starts = [one.start_ns for one in (*profile.ranges, *profile.calls, *profile.copies, *profile.kernels)]
    zero = min(starts, default=0)
    events: list[Event] = []
    for one in _in_order(profile.ranges):
        track = tracks.of(HOST, f"thread {one.thread}, ranges", one)
        events.append(_slice(one, "range", track, zero, {}))
    calls: dict[int, tuple[Call, tuple[int, int]]] = {}
    for call in _in_order(profile.calls):
        track = tracks.of(HOST, f"thread {call.thread}, CUDA calls", call)
        calls[call.correlation] = call, track
        events.append(_slice(call, "call", track, zero, {"correlation": call.correlation}))
    queued: list[KernelRun | Copy] = [*profile.kernels, *profile.copies]
    for number, run in enumerate(_in_order(queued), 1):
        kind, lane, details = _device_slice(run)
        track = tracks.of(_FIRST_GPU + run.device, f"stream {run.stream}, {lane}", run)
        events.append(_slice(run, kind, track, zero, details | {"correlation": run.correlation}))
        if run.correlation in calls:
            events += _arrow(number, *calls[run.correlation], run, track, zero)
    return {"traceEvents": [*tracks.names(), *events], "displayTimeUnit": "ns", "otherData": dict(about)}


def write_trace(path: Path, profile: Profile, about: Mapping[str, Any], *, force: bool) -> None:
    """Write a profile to a file that has its name only when it is complete.

    Raises
    ------
    ArgumentError
        If there is a file of that name, and `force` does not say that it may be replaced.
    """
    write_whole(path, json.dumps(trace(profile, about)), force=force)


def _in_order(spans: Iterable[_S]) -> list[_S]:
    """Return spans in order of their begin, enclosing ones before enclosed ones."""
    return sorted(spans, key=lambda one: (one.start_ns, -one.end_ns))


class _Tracks:
    """Numbers tracks in the order in which they are first used."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        # Ends of the slices that contain the latest of a track, the innermost last.
        self._open: dict[tuple[int, str], list[int]] = {}

    def of(self, process: int, name: str, one: Span) -> tuple[int, int]:
        """Return process and number of the track for the next slice, the first of that name that has room for it."""
        for lane in itertools.count(1):
            key = process, name if lane == 1 else f"{name} ({lane})"
            ends = self._open.setdefault(key, [])
            while ends and ends[-1] <= one.start_ns:
                ends.pop()
            if not ends or one.end_ns <= ends[-1]:
                break
        ends.append(one.end_ns)
        return process, self._numbers.setdefault(key, _FIRST_TRACK + len(self._numbers))

    def names(self) -> Iterator[Event]:
        """Yield the events that name processes and tracks, and put them in order."""
        for process in sorted({process for process, _ in self._numbers}):
            name = "host" if process == HOST else f"GPU {process - _FIRST_GPU}"
            yield _about(process, 0, "process_name", name=name)
            yield _about(process, 0, "process_sort_index", sort_index=process)
        for (process, name), number in self._numbers.items():
            yield _about(process, number, "thread_name", name=name)
            yield _about(process, number, "thread_sort_index", sort_index=number)


def _about(process: int, track: int, what: str, **details: Any) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "name": what, "args": details}


def _slice(one: Span, kind: str, track: tuple[int, int], zero: int, details: Mapping[str, Any]) -> Event:
    return {
        "ph": "X",
        "pid": track[0],
        "tid": track[1],
        "ts": _us(one.start_ns - zero),
        "dur": _us(one.duration_ns),
        "name": one.name,
        "cat": kind,
        "args": dict(details),
    }


def _device_slice(run: KernelRun | Copy) -> tuple[str, str, dict[str, Any]]:
    """Return kind, track and details of what ran on a GPU."""
    if isinstance(run, Copy):
        seconds = run.duration_ns / 1e9
        rate = {"GB/s": round(run.size / seconds / 1e9, 3)} if seconds else {}
        return "copy", "copies", {"bytes": run.size, **rate}
    details = {"grid": run.grid, "block": run.block, "registers": run.registers, "shared_bytes": run.shared_bytes}
    return "kernel", "kernels", details


def _arrow(
    number: int, call: Call, origin: tuple[int, int], run: KernelRun | Copy, target: tuple[int, int], zero: int
) -> list[Event]:
    """Return the two ends of an arrow, each within its slice."""
    arrow = {"name": "queues", "cat": "queues", "id": number}
    return [
        {"ph": "s", "pid": origin[0], "tid": origin[1], "ts": _us(call.start_ns - zero), **arrow},
        {"ph": "f", "bp": "e", "pid": target[0], "tid": target[1], "ts": _us(run.start_ns - zero), **arrow},
    ]


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1e3
