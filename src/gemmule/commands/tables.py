"""Tables and paragraphs on stdout, as wide as the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

from ..lab.column_widths import column_widths

# A space at each side of a column, and one between columns.
_GAP = 3
# Column widths are fixed before rich lays out the table, so it must not reduce them.
_UNLIMITED = 10_000
# Longer lines of prose are hard to read, and tables of figures do not fit into shorter ones.
_NARROWEST, _WIDEST = 80, 140


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1, optional: Sequence[str] = ()
) -> None:
    """Print a table; the first `texts` columns are flush left, the others right.

    Headers and texts wrap at the terminal's width, or at COLUMNS where that is set; a file or pipe gets whole rows.
    Numbers and words are never broken; a table that is still too wide loses its optional columns, one by one. A column
    without a figure is left out.

    Parameters
    ----------
    title : str
        Line above it.
    header, rows
        Its cells.
    texts : int
        Columns of text.
    optional : sequence of str
        Names of columns that a narrow terminal omits, the first first.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header, rows = _with_columns(header, rows, [any(row[number] for row in rows) for number in range(len(header))])
    for name in optional:
        if _least_width(header, rows, texts) <= terminal_width():
            break
        if name in header:
            header, rows = _with_columns(header, rows, [other != name for other in header])
    is_text = [number < texts or name == "note" for number, name in enumerate(header)]
    terminal = terminal_width()
    widths = column_widths(header, rows, is_text, terminal - _GAP * len(header) + 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, text, width in zip(header, is_text, widths, strict=True):
        table.add_column(Text(name), justify="left" if text else "right", width=width)
    for row in rows:
        # Brackets in a cell are brackets, not rich's markup.
        table.add_row(*map(Text, row))
    Console(width=terminal, highlight=False).print(Text(title, style="bold"))
    Console(width=_UNLIMITED, highlight=False).print(table)


def _with_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[bool]
) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table to print; a table without rows prints all."""
    numbers = [number for number, keep in enumerate(kept) if keep or not rows]
    return [header[number] for number in numbers], [[row[number] for number in numbers] for row in rows]


def _least_width(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> int:
    """Return the width of a table whose columns are as narrow as words and numbers allow."""
    is_text = [number < texts or name == "note" for number, name in enumerate(header)]
    return sum(column_widths(header, rows, is_text, 0)) + _GAP * len(header) - 1


def echo_text(text: str) -> None:
    """Print a paragraph, wrapped at the terminal's width; a file or pipe gets one line."""
    click.echo(textwrap.fill(text, terminal_width(), break_long_words=False, break_on_hyphens=False))


def prose_width() -> int:
    """Return the width for pages of prose and tables: the terminal's within limits, and 100 in a file or pipe."""
    width = terminal_width()
    return 100 if width == _UNLIMITED else min(max(width, _NARROWEST), _WIDEST)


def terminal_width() -> int:
    """Return the width for tables and paragraphs; a file or pipe has no limit."""
    if os.environ.get("COLUMNS") or (sys.stdout is not None and sys.stdout.isatty()):
        return shutil.get_terminal_size().columns
    return _UNLIMITED
