"""Activity of the streams of a product that passes through a device: for Perfetto, and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmule.executor.activity import Transfer

from .drawing.canvas import Page, figure_on, file_content
from .whole_files import write_whole

#: Streams from above to below, as the figure of Liang et al. (2010) has them: what comes, what is computed, what goes.
_ORDER = ("C in", "A, B in", "compute", "second compute", "third compute", "fourth compute", "mirror compute", "C out")
_COMPUTE = "compute"
#: Nanoseconds of a unit of time, and its name, from the longest.
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def stream_trace(activity: Sequence[Transfer], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return operations in the trace event format: a process whose threads are the streams."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "device"}}]
    tracks = {name: number for number, name in enumerate(_streams(activity), 1)}
    for name, number in tracks.items():
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    for one in activity:
        seconds = one.duration_ns / 1e9
        compute = one.stream.endswith(_COMPUTE)
        details: dict[str, Any] = {"flop" if compute else "bytes": one.size}
        if seconds and one.size:
            rate = one.size / seconds
            details |= {"TFLOP/s": round(rate / 1e12, 3)} if compute else {"GB/s": round(rate / 1e9, 3)}
        events.append(
            {
                "ph": "X", "pid": 1, "tid": tracks[one.stream], "ts": one.start_ns / 1e3, "dur": one.duration_ns / 1e3,
                "name": one.name, "cat": "kernel" if compute else "copy", "args": details,
            }
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": dict(about)}


def write_stream_trace(path: Path, activity: Sequence[Transfer], about: Mapping[str, Any], *, force: bool) -> None:
    """Write what ran when to a file that has its name only when it is complete."""
    write_whole(path, json.dumps(stream_trace(activity, about)), force=force)


def draw_timeline(path: Path, activity: Sequence[Transfer], title: str, *, force: bool) -> None:
    """Draw streams over time: a bar for everything that ran, each stream in a line of its own.

    Parameters
    ----------
    path : Path
        A .png or .svg file.
    activity : sequence of Transfer
        Operations with their times.
    title : str
        Title.
    force : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    UnsupportedError
        If matplotlib is not installed.
    """
    streams = _streams(activity)
    page = Page(height=max(240, 60 + 40 * len(streams)))
    end = max((one.end_ns for one in activity), default=0)
    unit, name = next(((size, text) for size, text in _UNITS if end >= size), _UNITS[-1])
    with figure_on(page) as figure:
        axes = figure.subplots()
        for row, stream in enumerate(streams):
            spans = [(one.start_ns / unit, one.duration_ns / unit) for one in activity if one.stream == stream]
            busy = sum(length for _, length in spans) / (end / unit) if end else 0.0
            axes.broken_barh(
                spans, (row - 0.35, 0.7), facecolor=page.theme.series[row % len(page.theme.series)],
                edgecolor=page.theme.page, linewidth=0.3,
            )  # fmt: skip
            axes.annotate(f"{busy:.1%}", (1.01, row), xycoords=("axes fraction", "data"), va="center")
        axes.set_yticks(range(len(streams)), streams)
        axes.set_ylim(len(streams) - 0.4, -0.6)
        axes.set_xlim(0, max(end / unit, 1e-9))
        axes.set_xlabel(f"{name}; at the right, the share of the time in which a stream works")
        axes.grid(axis="x", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(title, pad=10)
        write_whole(path, file_content(figure, path.suffix[1:]), force=force)


def _streams(activity: Sequence[Transfer]) -> list[str]:
    """Return the streams in order, those of each device together: their names end alike, behind its number."""
    there = {one.stream for one in activity}

    def place(stream: str) -> tuple[int, str, int]:
        device, colon, name = stream.rpartition(": ")
        known = _ORDER.index(name) if name in _ORDER else len(_ORDER)
        return len(device), device + colon, known

    return sorted(there, key=lambda stream: (*place(stream), stream))
