"""Draws panels of bars: one panel for each figure, one bar for each kernel, its value written next to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..styles import Style, short
from .canvas import Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Points of height of a bar, and of what is around the bars of a panel.
_BAR, _AROUND = 17.0, 34.0


@dataclasses.dataclass(frozen=True)
class Bar:
    """A kernel's value, its length and its text."""

    name: str
    style: Style
    value: float
    text: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """A figure of every kernel that has it."""

    title: str
    bars: tuple[Bar, ...]


def bars_height(panels: Sequence[Panel], *, narrow: bool) -> float:
    """Return the height in points that the panels need."""
    columns = _columns(len(panels), narrow=narrow)
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    return sum(_AROUND + _BAR * max(len(panel.bars) for panel in row) for row in rows)


def draw_bars(figure: Figure, panels: Sequence[Panel], page: Page) -> None:
    """Draw the panels into an empty figure."""
    columns = _columns(len(panels), narrow=page.narrow)
    rows = -(-len(panels) // columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < len(panels):
            _panel(axes, panels[place], page, named=place % columns == 0)
        else:
            axes.set_visible(False)


def _columns(panels: int, *, narrow: bool) -> int:
    """Return the panels side by side: three, or two where that fills the rows."""
    return 1 if narrow else min(panels, 2 if panels == 4 else 3)


def _panel(axes: Axes, panel: Panel, page: Page, *, named: bool) -> None:
    theme = page.theme
    # The first kernel stands above.
    places = list(range(len(panel.bars), 0, -1))
    for place, bar in zip(places, panel.bars, strict=True):
        colour = theme.series[bar.style.colour]
        # A kernel's first config is full, the others are hollow, as its marks are elsewhere.
        axes.barh(
            place, bar.value, height=0.62, facecolor=theme.page if bar.style.config else colour, edgecolor=colour,
            linewidth=1.2,
        )  # fmt: skip
        axes.annotate(
            bar.text, (bar.value, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=page.text - 1,
        )  # fmt: skip
    axes.set_yticks(places, [short(bar.name) if named else "" for bar in panel.bars])
    axes.set_ylim(0.4, len(panel.bars) + 0.6)
    # Space for the text next to the longest bar.
    axes.set_xlim(0, 1.45 * (max(bar.value for bar in panel.bars) or 1))
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_title(panel.title, pad=5)
