"""Tables of draws on a page: the seed must follow from the measured commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.lab.draw_tables import draw_rows

from .markdown import markdown

Record = Mapping[str, Any]


def draws_block(records: Sequence[Record]) -> str:
    """Return the table of a draw for a page; the records may be of several runs.

    Raises
    ------
    KeyError
        If a seed does not follow from the commit that was measured: its first eight hexadecimal digits.
    """
    for block in (one for one in records if one["record"] == "experiment"):
        wanted = int(str(block["commit"])[:8], 16)
        if any(draw["seed"] != wanted for draw in block["draws"]):
            raise KeyError(f"the seed of a draw is {wanted:#x}, the first eight digits of the measured commit")
    return markdown(*draw_rows(records))
