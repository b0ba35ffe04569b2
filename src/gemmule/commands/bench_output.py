"""Output of measured products: tables, lines, ratios and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .bench_end import draw_plots
from .tables import echo_text, print_table

if TYPE_CHECKING:
    from ..lab.bench_records import Record

#: Products beyond which ratios are summed up only.
_MOST_RATIOS = 60
#: Columns that a narrow terminal omits, the first first.
OPTIONAL = ("mean us", "max us", "min us", "error u", "of peak")


def table(point: list[Record]) -> None:
    """Print the figures of a product, a row for each kernel."""
    from ..lab.bench_tables import figures
    from ..lab.gemm_operation import GEMM, size_text

    header, rows = figures(GEMM, point, with_size=False, paired=True)
    print_table(title_of(point[0], size_text(point[0])), header, rows, optional=OPTIONAL)


def line(point: Sequence[Mapping[str, Any]]) -> None:
    """Print the results of a call, in a line."""
    from ..lab.draw_tables import line_of

    for record in point:
        if text := line_of(record):
            click.echo(text)


def title_of(record: Mapping[str, Any], size: str) -> str:
    """Return the title of a product's figures."""
    from ..lab.gemm_operation import layout_text

    out = f" -> {record['out_dtype']}" if record["out_dtype"] != record["dtype"] else ""
    precision = f" as {record['precision']}" if record.get("precision", "ieee") != "ieee" else ""
    return f"{size}, {record['dtype']}{precision}{out}, {layout_text(record)}"


def print_end(records: Sequence[Record]) -> None:
    """Print the verdict on all sizes, and their ratios."""
    from ..lab.gemm_tables import speed_up_line

    if verdict := speed_up_line(records):
        echo_text(verdict)
    print_ratios(records)


def print_ratios(records: Sequence[Mapping[str, Any]]) -> None:
    """Print the ratios of all sizes, skipped kernels, and controls outside of the protocol's limits."""
    from ..lab.bench_tables import ratios, skipped
    from ..lab.draw_tables import draw_rows
    from ..lab.gemm_operation import GEMM
    from ..lab.gemm_tables import controls

    header, rows = draw_rows(records)
    if rows:
        print_table("speed-up of a call over a baseline (more than 1 is faster)", header, rows)
        for line in skipped(GEMM, records):
            click.echo(line)
    header, rows = ratios(GEMM, records, paired=True)
    # With calls alone it would have a column for each config, and a ratio in each row.
    if 1 < len(rows) <= _MOST_RATIOS and not only_calls(records):
        print_table("speed-up over cuBLASLt (more than 1 is faster)", header, rows)
    for line in controls(records):
        click.echo(line)


def only_calls(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all that was timed is what calls run."""
    return all(one.get("chosen_by") == "dispatch" for one in records if one["record"] == "gemm")


def draw(records: Sequence[Record], folder: Path, stem: str, *, quiet: bool) -> None:
    """Draw the rates over the sizes, into files of a folder."""
    from ..lab.plots import plots

    without = "measure two sizes with M = N, with the same K or with K = M"
    draw_plots(plots(records), folder, stem, without=without, quiet=quiet)
