"""Tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence

# Rows are not broken or cut for the terminal's sake.
_WIDE = 400


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> None:
    """Print a table; the first `texts` columns are flush left, the others right.

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

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(header):
        text = number < texts or name == "note"
        table.add_column(Text(name), justify="left" if text else "right", no_wrap=True)
    for row in rows:
        # Brackets in a cell are brackets, not rich's markup.
        table.add_row(*map(Text, row))
    Console(width=_WIDE, highlight=False).print(Text(title, style="bold"), table)
