"""The figures of the page: each drawn twice, for wide and for narrow screens, in the page's own colours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..drawing.bars import Panel, bars_height, draw_bars
from ..drawing.canvas import Page
from ..drawing.curves import draw_curves
from ..plots import Plot
from .drawings import Drawing
from .views import FigureView, TableView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Width in points of a figure, which is as many of the screen's pixels or more; and the size of its text.
_WIDE, _NARROW = (760.0, 11.0), (358.0, 12.0)
#: Height of a figure for each label outside its axes, in sizes of text: the axes are three quarters of it.
_LABEL = 1.8


def curves_view(plot: Plot, name: str, title: str, caption: str, places: int) -> FigureView:
    """Return curves over sizes, with a table of them of so many decimal places."""

    def cell(curve: object, size: int) -> str:
        return f"{curve[size]:.{places}f}" if isinstance(curve, dict) and size in curve else ""

    sizes = sorted({size for _, curve in plot.curves for size in curve} | set(plot.library))
    columns = [*plot.curves, *([(plot.reference, plot.library)] if plot.library else [])]
    data = TableView(
        f"{name}-data", f"{title}: {plot.unit}", (plot.axis, *(head for head, _ in columns)),
        tuple((str(size), *(cell(curve, size) for _, curve in columns)) for size in sizes), folded=True,
    )  # fmt: skip
    # Each curve has its label to the right of the axes.
    heights = max(400.0, len(columns) * _LABEL * _WIDE[1]), max(380.0, len(columns) * _LABEL * _NARROW[1])
    return _twice(name, title, caption, data, heights, functools.partial(_curves, plot=plot))


def bars_view(panels: Sequence[Panel], name: str, title: str, caption: str, data: TableView) -> FigureView:
    """Return panels of bars, with their table."""
    heights = bars_height(panels, narrow=False), bars_height(panels, narrow=True)
    return _twice(name, title, caption, data, heights, functools.partial(_bars, panels=panels))


def _twice(
    name: str, title: str, caption: str, data: TableView, heights: tuple[float, float],
    draw: Callable[[Figure, Page], None],
) -> FigureView:  # fmt: skip
    wide, narrow = (
        Drawing(
            f"{name}-{kind}", f"{title}. The table below has the same figures.",
            Page(width, height, text, narrow=kind == "narrow"), draw,
        )
        for kind, (width, text), height in zip(("wide", "narrow"), (_WIDE, _NARROW), heights, strict=True)
    )  # fmt: skip
    return FigureView(name, title, caption, wide, narrow, data)


# Other processes find these by their names.


def _curves(figure: Figure, page: Page, *, plot: Plot) -> None:
    draw_curves(figure, plot, page, titled=False)


def _bars(figure: Figure, page: Page, *, panels: Sequence[Panel]) -> None:
    draw_bars(figure, panels, page)
