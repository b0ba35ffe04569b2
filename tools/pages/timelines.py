"""A recorded timeline for a page of the documentation: as rows of text, and as a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmule.lab.drawing.canvas import Page
from gemmule.lab.drawing.theme import Theme
from gemmule.lab.explain.steps import Rules
from gemmule.lab.explain.timeline import Role, Span, Timeline, Wait
from gemmule.lab.explain.timeline_picture import draw_rows, timeline_page
from gemmule.lab.explain.timeline_text import chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def timeline_from(data: Mapping[str, Any]) -> Timeline:
    """Return the timeline that `timeline_dict` made plain data of."""
    step, given = data["step_clocks"], data["rules"]
    roles = tuple(Role(one["cta"], tuple(one["warps"]), tuple(one["does"])) for one in data["roles"])

    def span(one: Mapping[str, Any]) -> Span:
        place = one["tile"] * data["slices"] + one["slice"] if one["slice"] is not None else None
        begin, end = one["begin"] * step, one["end"] * step
        return Span(one["what"], roles[one["role"]], begin, end, one["cta"], place, one["stage"], one["for"] or "")

    return Timeline(
        rules=Rules(
            given["flop_per_clock"], given["shared_bytes_per_clock"], given["copy_bytes_per_clock"],
            given["copy_latency_clocks"],
        ),
        step=step,
        tiles=data["tiles"],
        k_tiles=data["slices"],
        stages=data["stages"],
        ctas=data["ctas"],
        multiprocessors=data["multiprocessors"],
        persistent=data["persistent"],
        roles=roles,
        spans=tuple(map(span, data["events"])),
        waits=tuple(
            Wait(
                roles[one["role"]], one["for"], tuple(roles[number] for number in one["by"]), one["times"],
                one["steps"] * step, one["on_longest_path"],
            )
            for one in data["waits"]
        ),
        path={what: steps * step for what, steps in data["longest_path"].items()},
        idle={(one["when"], one["for"]): one["steps"] * step for one in data["tensor_cores_idle"]},
        end=data["steps"] * step,
        copied=data["copied_bytes"],
    )  # fmt: skip


def timeline_record(records: Sequence[Mapping[str, Any]], kernel: str) -> Mapping[str, Any]:
    """Return the record of a kernel's timeline.

    Raises
    ------
    KeyError
        If there is none.
    """
    one = next((r for r in records if r["record"] == "timeline" and r["kernel"] == kernel), None)
    if one is None:
        raise KeyError(f"the records have no timeline of {kernel}")
    return one


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

    def page(self, theme: Theme) -> Page:
        """Return the page that it takes."""
        return timeline_page(self.found, theme)

    def draw(self, figure: Figure, page: Page) -> None:
        """Draw it."""
        draw_rows(figure, page, self.found, self.title)


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


def timeline_block(records: Sequence[Mapping[str, Any]], kernel: str) -> str:
    """Return the rows of a kernel's timeline, and what was run.

    Raises
    ------
    KeyError
        If the records have no timeline of the kernel.
    """
    one = timeline_record(records, kernel)
    found = timeline_from(one["timeline"])
    config = " ".join(f"{name}={value}" for name, value in one["config"].items())
    tiles = f"the first {found.tiles} tiles of a CTA" if found.tiles > 1 else "a tile"
    if found.ctas > found.multiprocessors:
        tiles = f"a tile of each of the {found.ctas // found.multiprocessors} CTAs of an SM"
    rules = found.rules
    return "\n".join(
        [
            f"{' x '.join(map(str, one['shape']))}, {one['dtype']}, {one['chip']}, {config}: {tiles}, cut to "
            f"{found.k_tiles} k-tiles. A step is a k-tile's products, {found.step:,.0f} cycles; {rules.copy_bytes:g} "
            f"bytes a cycle for copies and {rules.copy_latency:g} cycles until the first one comes are assumed. By "
            "rule, not measured.",
            "",
            "```",
            chart(found),
            "```",
        ]
    )
