"""A recorded timeline as a picture of a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .timeline import Timeline
from .timeline_json import timeline_from, timeline_record


@dataclasses.dataclass(frozen=True)
class TimelinePlot:
    """One kernel's pipeline over steps.

    Attributes
    ----------
    name : str
        Part of its file name, e.g. ``h08_pingpong``.
    title : str
        What it shows.
    found : Timeline
        What happened when.
    """

    name: str
    title: str
    found: Timeline

    #: There is always something to draw.
    drawn = True


def timeline_plot(records: Sequence[Mapping[str, Any]], kernel: str) -> TimelinePlot:
    """Return the picture of a kernel's timeline.

    Raises
    ------
    KeyError
        If the records have no timeline of the kernel.
    """
    one = timeline_record(records, kernel)
    shape = " x ".join(map(str, one["shape"]))
    return TimelinePlot(kernel, f"{kernel}, {shape}, {one['dtype']}, {one['chip']}", timeline_from(one["timeline"]))
