"""The section on transposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..bench_tables import figures as every_figure
from ..bench_tables import ratios as copy_ratios
from ..drawing.bars import Bar, Panel
from ..plots import Plot
from ..styles import COLOURS, Style, short, styles
from ..transpose_operation import TRANSPOSE
from ..transpose_plots import TransposePlot, by_size, transpose_plots
from ..transpose_tables import throughput
from . import figures
from .sources import Machine
from .views import FigureView, Section, TableView, table_view

Record = Mapping[str, Any]


def transposes(machine: Machine, name: str) -> Section | str:
    """Return the section, or what is not in the records."""
    measured = TRANSPOSE.of(machine.records)
    # Counts of kernels that were not timed: the table of counts takes them as transposes without a time.
    counted = [{**one, "record": "transpose"} for one in machine.records if one["record"] == "transpose_counts"]
    timed = any(record["record"] == "transpose" for record in measured)
    if not timed and not counted:
        return "Transposes: there are no transpose records."
    tables = _timed_tables(measured, name) if timed else []
    if counted:
        caption, counts = "What transposes ask of the L1 caches, counted only", throughput(counted)
        tables.append(table_view(f"{name}-transpose-counts", caption, counts, texts=2))
    drawn = [
        _blocks(plot, name) if plot.bars else _sizes(plot, measured, name) for plot in transpose_plots(machine.records)
    ]
    return Section(f"{name}-transposes", "Transposes", figures=tuple(drawn), tables=tuple(tables))


def _timed_tables(measured: Sequence[Record], name: str) -> list[TableView]:
    (header, rows), every = copy_ratios(TRANSPOSE, measured), every_figure(TRANSPOSE, measured)
    # Many configs of many fields: their values, which the next table has with their names.
    ratios = [short(head) for head in header], rows
    tables = [
        table_view(f"{name}-transpose-ratios", "Bandwidth of transposes / that of the copy", ratios),
        table_view(f"{name}-transpose-figures", f"Every transpose: {len(every[1])} rows", every, texts=2, folded=True),
    ]
    if any("counts" in record for record in measured):
        caption, counts = "What transposes ask of the L1 caches", throughput(measured)
        tables.append(table_view(f"{name}-transpose-l1", caption, counts, texts=2))
    return tables


def _sizes(plot: TransposePlot, measured: Sequence[Record], name: str) -> FigureView:
    """Return bandwidth over sizes, of each kernel that of its fastest config."""
    looks: dict[str, Style] = {}
    for key, style in styles(measured).items():
        looks.setdefault(key[0], style)
    fastest: dict[str, dict[int, float]] = {}
    for label, rates in plot.curves:
        best = fastest.setdefault(label.partition("[")[0], {})
        for size, rate in by_size(plot, rates).items():
            best[size] = max(rate, best.get(size, 0.0))
    curves = tuple(fastest.items())
    copies = by_size(plot, plot.copy) if plot.copy else {}
    drawn = tuple(looks.get(kernel, Style()) for kernel, _ in curves)
    title = _title(plot)
    shown = Plot(plot.name, title, plot.axis, curves, copies, (), drawn, "effective GB/s", "copy")
    caption = "Bytes read and written over the time, by a kernel's fastest config. Dashed: the device's own copy."
    return figures.curves_view(shown, f"{name}-{plot.name}", title, caption, 0)


def _blocks(plot: TransposePlot, name: str) -> FigureView:
    """Return bandwidth over block shapes: a panel for each kernel."""
    panels = []
    for number, (label, rates) in enumerate(plot.curves):
        look = Style(number % COLOURS)
        # Panels side by side share the names of the places, so that one without a rate keeps its row.
        bars = (
            Bar(place, look, rate or 0.0, "" if rate is None else f"{rate:.0f}")
            for place, rate in zip(plot.places, rates, strict=True)
        )
        panels.append(Panel(label, tuple(bars)))
    rows = tuple(
        (place, *("" if rates[number] is None else f"{rates[number]:.0f}" for _, rates in plot.curves))
        for number, place in enumerate(plot.places)
    )
    title, header = _title(plot), (plot.axis, *(label for label, _ in plot.curves))
    data = TableView(f"{name}-{plot.name}-data", f"{title}: effective GB/s", header, rows)
    caption = f"Effective GB/s of each kernel by the {plot.axis}."
    return figures.bars_view(panels, f"{name}-{plot.name}", title, caption, data)


def _title(plot: TransposePlot) -> str:
    return plot.title[:1].upper() + plot.title[1:]
