"""Tables of draws on a page: the seed must follow from the measured commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmule.lab.draw_tables import draw_rows, types_of

from .markdown import markdown

Record = Mapping[str, Any]


def draws_block(records: Sequence[Record]) -> str:
    """Return the table of a draw for a page; of several runs, the last one that has a type stands for it.

    Raises
    ------
    KeyError
        If a seed does not follow from the commit that was measured: its first eight hexadecimal digits.
    """
    shown: dict[str, list[Record]] = {}
    for run in _runs(records):
        wanted = int(str(run[0]["commit"])[:8], 16)
        if any(draw["seed"] != wanted for draw in run[0]["draws"]):
            raise KeyError(f"the seed of a draw is {wanted:#x}, the first eight digits of the measured commit")
        products = [one for one in run if "m" in one]
        shown |= {types: [one for one in products if types_of(one) == types] for types in map(types_of, products)}
    return markdown(*draw_rows([one for group in shown.values() for one in group]))


def _runs(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of each run, its experiment block first."""
    found: list[list[Record]] = []
    for one in records:
        if one["record"] == "experiment":
            found.append([])
        found[-1].append(one)
    return found
