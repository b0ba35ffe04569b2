"""Tables on stdout."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

# A space at each side of a column, and one between columns.
_GAP = 3
# Column widths are fixed before rich lays out the table, so it must not reduce them.
_UNLIMITED = 10_000


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> None:
    """Print a table; the first `texts` columns are flush left, the others right.

    Headers and texts wrap at the terminal's width, or at COLUMNS where that is set; a file or pipe gets whole rows.
    Numbers and words are never broken, so that a table of many numbers may be wider.

    Parameters
    ----------
    title : str
        Line above it.
    header, rows
        Its cells.
    texts : int
        Columns of text.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_text = [number < texts or name == "note" for number, name in enumerate(header)]
    terminal = _terminal_width()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, text, width in zip(header, is_text, _widths(header, rows, is_text, terminal), strict=True):
        table.add_column(Text(name), justify="left" if text else "right", width=width)
    for row in rows:
        # Brackets in a cell are brackets, not rich's markup.
        table.add_row(*map(Text, row))
    Console(width=terminal, highlight=False).print(Text(title, style="bold"))
    Console(width=_UNLIMITED, highlight=False).print(table)


def _terminal_width() -> int:
    """Return the width to fit tables into; a file or pipe has no limit."""
    if os.environ.get("COLUMNS") or (sys.stdout is not None and sys.stdout.isatty()):
        return shutil.get_terminal_size().columns
    return _UNLIMITED


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool], terminal: int) -> list[int]:
    """Return the widths of a table's columns: the widest are reduced to fit, down to the longest word or number."""
    least, widths = [], []
    for name, text, *cells in zip(header, is_text, *rows, strict=True):
        words = [word for cell in cells for word in cell.split()] if text else cells
        least.append(max(map(len, (*name.split(), *words)), default=0))
        widths.append(max(map(len, (name, *cells))))
    room = terminal - _GAP * len(widths) + 1
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda number: (widths[number] > least[number], widths[number]))
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return widths
