"""The trace and the timeline of a product through a device, as files of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ArgumentError

if TYPE_CHECKING:
    from ..outofcore.calls.session import StreamSession


def check_drawings(trace: str | None, timeline: str | None, *, force: bool, others: Sequence[str | None] = ()) -> None:
    """Refuse files that cannot be written, or that are one of `others`, before anything runs."""
    from ..lab.whole_files import check_target

    read = [Path(other.partition("::")[0]) for other in others if other]
    for path in (trace, timeline):
        if path is not None:
            check_target(Path(path).absolute(), force=force, inputs=read)
            read.append(Path(path))
    if timeline is not None:
        from ..lab.drawing.canvas import check_matplotlib

        check_matplotlib()
        if Path(timeline).suffix not in (".png", ".svg"):
            raise ArgumentError(f"--timeline {timeline}: is neither .png nor .svg; name a file of one of these")


def write_drawings(session: StreamSession, trace: str | None, timeline: str | None, *, force: bool) -> None:
    """Write the trace and the timeline, where the user named files for them."""
    from ..lab.streams import draw_timeline, write_stream_trace
    from ..outofcore.calls.plan import extents_of

    title = f"{extents_of(session.plan)} by {session.plan.strategy} on {session.engine.device}"
    if trace is not None:
        write_stream_trace(Path(trace).absolute(), session.activity, {"product": title}, force=force)
    if timeline is not None:
        draw_timeline(Path(timeline).absolute(), session.activity, title, force=force)
