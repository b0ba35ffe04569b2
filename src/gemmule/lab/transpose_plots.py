"""Plots of measured transposes, made from records only: bandwidth over sizes, and over block shapes.

What there is to draw is found out here; `pictures.draw` draws it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .drawing.bars import Bar, Panel
from .kernel_labels import labels, name_of
from .plots import Plot
from .styles import COLOURS, Style
from .transpose_operation import TRANSPOSE
from .transpose_tables import sweep

Record = Mapping[str, Any]
# Fewer sizes make no curve.
_FEWEST_SIZES = 3


@dataclasses.dataclass(frozen=True)
class TransposePlot:
    """One plot of GB/s."""

    name: str  #: Part of its file name, e.g. ``transpose-4-bytes``.
    title: str  #: Title.
    axis: str  #: Text of the horizontal axis.
    places: tuple[str, ...]  #: Ticks, in order.
    curves: tuple[tuple[str, tuple[float | None, ...]], ...]  #: Name and GB/s at each place, None where there is none.
    copy: tuple[float | None, ...] = ()  #: The device's own copy at each place; empty where there is none to be drawn.
    bars: bool = False  #: Whether the curves are groups of bars.

    #: There is always something to draw.
    drawn = True


def transpose_plots(records: Sequence[Record]) -> list[TransposePlot]:
    """Return the plots that a record file gives: one for each element size over squares, one for each sweep."""
    measured = TRANSPOSE.of(records)
    names = labels(measured)
    gpu = f", {records[0]['gpu']}" if records and "gpu" in records[0] else ""
    found = []
    squares = [r for r in measured if "gbps" in r and r["m"] == r["n"] and not r.get("batch")]
    for itemsize in dict.fromkeys(r["itemsize"] for r in squares):
        here = [r for r in squares if r["itemsize"] == itemsize]
        edges = sorted({r["m"] for r in here})
        if len(edges) < _FEWEST_SIZES:
            continue
        curves: dict[str, dict[int, float]] = {}
        copies: dict[int, list[float]] = {}
        for r in here:
            curves.setdefault(name_of(r, names), {})[r["m"]] = r["gbps"]
            copies.setdefault(r["m"], []).append(r["copy_gbps"])
        found.append(
            TransposePlot(
                f"transpose-{itemsize}-byte",
                f"transposes, elements of {itemsize} bytes{gpu}",
                "M = N",
                tuple(map(str, edges)),
                tuple((name, tuple(map(curve.get, edges))) for name, curve in curves.items()),
                tuple(statistics.median(copies[edge]) for edge in edges),
            )
        )
    for size, (shapes, rates) in sweep(records).items():
        stem = size.replace(" x ", "x").replace(" ", "-")
        groups = tuple((kernel, tuple(row)) for kernel, row in rates.items())
        title, axis = f"block shapes, {size}{gpu}", "threads of a block"
        found.append(TransposePlot(f"transpose-blocks-{stem}", title, axis, tuple(shapes), groups, bars=True))
    return found


def as_curves(plot: TransposePlot) -> Plot:
    """Return a plot over sizes as one of curves."""
    curves = tuple((name, by_size(plot, rates)) for name, rates in plot.curves)
    looks = tuple(Style(number % COLOURS, number // COLOURS) for number, _ in enumerate(curves))
    copies = by_size(plot, plot.copy) if plot.copy else {}
    return Plot(plot.name, plot.title, plot.axis, curves, copies, (), looks, "effective GB/s", "copy")


def by_size(plot: TransposePlot, rates: Sequence[float | None]) -> dict[int, float]:
    """Return the rates of a plot over sizes by size, those that there are."""
    return {int(place): rate for place, rate in zip(plot.places, rates, strict=True) if rate is not None}


def as_panels(plot: TransposePlot) -> tuple[Panel, ...]:
    """Return a plot over block shapes as a panel of bars for each kernel."""
    return tuple(
        Panel(
            name,
            tuple(
                Bar(place, Style(number % COLOURS), rate, f"{rate:.0f}")
                for place, rate in zip(plot.places, rates, strict=True)
                if rate is not None
            ),
        )
        for number, (name, rates) in enumerate(plot.curves)
    )
