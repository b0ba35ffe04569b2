"""Draws rooflines: the roofs of a chip, and the kernels under them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gemmule.lab.drawing.canvas import Page, spread_labels
from gemmule.lab.drawing.theme import MARKS
from gemmule.lab.styles import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .rooflines import Roofline

_TERA = 1e12


def draw_roofline(figure: Figure, roofline: Roofline, page: Page) -> None:
    """Draw a roofline into an empty figure; kernels without a rate or without bytes are left out."""
    theme = page.theme
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    drawn = roofline.plotted
    intensities = [value for place in drawn for value in (place.dram, place.l2) if value]
    rates = [place.rate / _TERA for place in drawn if place.rate]
    peak = roofline.roofs[0][1] / _TERA
    left = min([*intensities, roofline.roofs[-1][1] / roofline.bandwidth]) / (3 if page.narrow else 2)
    right = 2 * max([*intensities, roofline.roofs[0][1] / roofline.bandwidth])
    axes.set_xlim(left, right)
    axes.set_ylim(min([*rates, left * roofline.bandwidth / _TERA]) / 1.6, 2 * peak)
    _roofs(axes, roofline, page, left, right)
    labels = []
    for place in drawn:
        assert place.dram is not None
        assert place.rate is not None
        colour, rate = theme.series[place.style.colour], place.rate / _TERA
        if place.l2:
            axes.plot([place.l2, place.dram], [rate, rate], color=colour, linewidth=1)
            axes.plot([place.l2], [rate], color=colour, marker="|", markersize=9, markeredgewidth=1.6)
        axes.plot(
            [place.dram], [rate], color=colour, marker=MARKS[place.style.colour], markersize=7, markeredgewidth=1.4,
            markerfacecolor=theme.page if place.style.config else colour, linestyle="none",
        )  # fmt: skip
        labels.append((place.dram, rate, short(place.name), colour))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    if roofline.yardstick is not None:
        reached = (roofline.yardstick / roofline.bandwidth, right)
        axes.plot(reached, [roofline.yardstick / _TERA] * 2, color=theme.ink, linestyle="--", linewidth=1.4)
        labels.append((right, roofline.yardstick / _TERA, "cuBLASLt", theme.ink))
    between = "\n" if page.narrow else ": "
    axes.set_xlabel(f"FLOP a byte{between}marks at device memory, ticks at the L2 cache")
    axes.set_ylabel("TFLOP/s")
    axes.grid(linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(roofline.title, pad=10)
    spread_labels(axes, labels, page, faint=True)


def _roofs(axes: Axes, roofline: Roofline, page: Page, left: float, right: float) -> None:
    from .rooflines import unit_text

    theme, bandwidth = page.theme, roofline.bandwidth
    peaks = [rate for _, rate in roofline.roofs]
    ends = (left, peaks[0] / bandwidth)
    axes.plot(ends, [end * bandwidth / _TERA for end in ends], color=theme.ink, linewidth=1.8)
    for number, (unit, peak) in enumerate(roofline.roofs):
        axes.plot(
            [peak / bandwidth, right], [peak / _TERA] * 2, color=theme.ink if number == 0 else theme.faint,
            linewidth=1.8 if number == 0 else 1.2, linestyle="-" if number == 0 else ":",
        )  # fmt: skip
        axes.annotate(
            f"{unit_text(unit)}: {peak / _TERA:.1f}{'' if page.narrow else ' TFLOP/s'}", (right, peak / _TERA),
            xytext=(-4, 4), textcoords="offset points", ha="right", va="bottom", fontsize=page.text - 1,
            color=theme.faint,
        )  # fmt: skip
    # Nearer to the lower end: the labels of the units stand at the upper one.
    lower = 0.5 if page.narrow else 0.6
    middle = ends[0] ** lower * ends[1] ** (1 - lower)
    # The direction of the roof in the data's own units; the axes turn the text as they turn the roof.
    along = math.degrees(math.atan(bandwidth / _TERA))
    axes.text(
        middle, 1.18 * middle * bandwidth / _TERA, f"memory: {bandwidth / _TERA:.2f} TB/s", ha="center", va="bottom",
        rotation=along, rotation_mode="anchor", transform_rotates_text=True, fontsize=page.text - 1, color=theme.faint,
    )  # fmt: skip
