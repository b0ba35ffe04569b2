"""Widths of a table's columns, within a terminal's width."""

from __future__ import annotations

from collections.abc import Sequence


def column_widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool], room: int
) -> list[int]:
    """Return widths whose sum is at most `room`, where words and numbers allow that.

    Headers of numbers wrap first, then texts, the widest column first; no word and no number is broken.

    Parameters
    ----------
    header : sequence of str
        Names of the columns.
    rows : sequence of sequence of str
        As many cells each.
    is_text : sequence of bool
        Whether the cells of a column may wrap.
    room : int
        Characters for all columns, without what separates them.
    """
    least, widths = [], []
    for name, text, *cells in zip(header, is_text, *rows, strict=True):
        words = [word for cell in cells for word in cell.split()] if text else cells
        least.append(max(map(len, (*name.split(), *words)), default=0))
        widths.append(max(map(len, (name, *cells))))
    while sum(widths) > room:
        loose = [number for number, width in enumerate(widths) if width > least[number]]
        if not loose:
            break
        widest = max(loose, key=lambda number: (not is_text[number], widths[number]))
        widths[widest] -= 1
    return widths
