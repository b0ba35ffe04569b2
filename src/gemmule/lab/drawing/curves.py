"""Draws curves over sizes: kernels, the baseline, and the peak rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .canvas import Page, spread_labels
from .theme import MARKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..plots import Plot


def draw_curves(figure: Figure, plot: Plot, page: Page, *, titled: bool = True) -> None:
    """Draw a plot into an empty figure."""
    from ..styles import short

    theme = page.theme
    axes = figure.add_subplot()
    sizes = sorted({size for _, curve in plot.curves for size in curve} | set(plot.library))
    axes.set_xscale("log", base=2)
    ticks = _ticks(sizes, page)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([size for size in sizes if size not in ticks], minor=True)
    axes.set_xticklabels([], minor=True)
    axes.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.12)
    top = max([*(rate for _, curve in plot.curves for rate in curve.values()), *plot.library.values(),
               *(rate for rate, _ in plot.peaks)])  # fmt: skip
    axes.set_ylim(0, 1.06 * top)
    ends = []
    for (name, curve), style in zip(plot.curves, plot.styles, strict=True):
        colour = theme.series[style.colour]
        where = sorted(curve)
        axes.plot(
            where, [curve[size] for size in where], color=colour, linewidth=1.6, marker=MARKS[style.colour],
            markersize=5, markerfacecolor=theme.page if style.config else colour, markeredgecolor=colour,
            linestyle="-" if style.config == 0 else (0, (4, 1.5)),
        )  # fmt: skip
        ends.append((where[-1], curve[where[-1]], short(name), colour))
    if plot.library:
        where = sorted(plot.library)
        axes.plot(where, [plot.library[size] for size in where], color=theme.ink, linestyle="--", linewidth=2)
        ends.append((where[-1], plot.library[where[-1]], plot.reference, theme.ink))
    for rate, text in plot.peaks:
        axes.axhline(rate, color=theme.faint, linewidth=1.2, linestyle=":")
        axes.annotate(
            text, (0.012, rate), xycoords=("axes fraction", "data"), xytext=(0, -3), textcoords="offset points",
            va="top", fontsize=page.text - 1, color=theme.faint,
            bbox={"facecolor": theme.page, "edgecolor": "none", "pad": 1, "alpha": 0.8},
        )  # fmt: skip
    axes.set_xlabel(plot.axis)
    axes.set_ylabel(plot.unit)
    axes.grid(linewidth=0.6)
    axes.set_axisbelow(True)
    if titled:
        axes.set_title(plot.title[:1].upper() + plot.title[1:], pad=10)
    spread_labels(axes, ends, page)


def _ticks(sizes: list[int], page: Page) -> list[int]:
    """Return the sizes that have room for their number: powers of two where there are some, else all."""
    powers = [size for size in sizes if size & (size - 1) == 0]
    ticks = powers if len(powers) > 1 else sizes
    most = 5 if page.narrow else 10
    step = -(-len(ticks) // most)
    # The largest has its number in any case.
    return ticks[::-1][::step][::-1]
