"""The figures of the page: each drawn twice, for wide and for narrow screens, in the page's own colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..drawing.bars import bars_height, draw_bars
from ..drawing.canvas import Page, figure_on, inline_svg
from ..drawing.curves import draw_curves
from ..drawing.places import draw_roofline
from ..panels import Panel
from ..plots import Plot
from ..rooflines import Roofline
from .views import FigureView, TableView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Width in points of a figure, which is as many of the screen's pixels or more; and the size of its text.
_WIDE, _NARROW = (760.0, 11.0), (358.0, 12.0)
#: Height of a figure for each label beside its axes, in sizes of text: the axes are three quarters of it.
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
    return _twice(
        name, title, caption, data, heights, lambda figure, page: draw_curves(figure, plot, page, titled=False)
    )


def roofline_view(roofline: Roofline, name: str, title: str, caption: str, data: TableView) -> FigureView:
    """Return a roofline, with its table."""
    return _twice(
        name, title, caption, data, (430.0, 400.0),
        lambda figure, page: draw_roofline(figure, roofline, page, titled=False),
    )  # fmt: skip


def bars_view(panels: Sequence[Panel], name: str, title: str, caption: str, data: TableView) -> FigureView:
    """Return panels of bars, with their table."""
    heights = bars_height(panels, narrow=False), bars_height(panels, narrow=True)
    return _twice(name, title, caption, data, heights, lambda figure, page: draw_bars(figure, panels, page))


def _twice(
    name: str, title: str, caption: str, data: TableView, heights: tuple[float, float],
    draw: Callable[[Figure, Page], None],
) -> FigureView:  # fmt: skip
    drawn = []
    for kind, (width, text), height in zip(("wide", "narrow"), (_WIDE, _NARROW), heights, strict=True):
        page = Page(width, height, text, narrow=kind == "narrow")
        with figure_on(page, text_as="none", salt=f"{name}-{kind}") as figure:
            draw(figure, page)
            drawn.append(inline_svg(figure, f"{name}-{kind}", f"{title}. The table below has the same figures."))
    return FigureView(name, title, caption, drawn[0], drawn[1], data)
