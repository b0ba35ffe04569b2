"""The guard's lists of rows and columns that the native kernel computes beside an emulated product."""

from __future__ import annotations

from typing import Any

from cutlass import Boolean, Int32, cute

from gemmule.kernels.emulation.guard_words import EARLY_LISTED, LISTED, NEVER, ROOM, SHORTFALL_WORDS
from gemmule.kernels.emulation.ozaki_config import EARLY_SHARE, FEWEST_EARLY


@cute.jit
def is_refused(shortfall: cute.Tensor):
    """Return whether the guard refuses already; CTAs of the same grid may do so meanwhile."""
    return cute.arch.load(shortfall.iterator, Int32, sem="relaxed", scope="gpu") == NEVER


@cute.jit
def list_line(line: Any, side: Any, shortfall: cute.Tensor, is_early: Any = False):
    """List a row of A (`side` 0) or a column of B (1); refuse the product where there is no room for it.

    Of the lines that are measured first, a share of all, the same share is refused, less a margin. Whether they are
    too many does not depend on the order of CTAs either.
    """
    room = shortfall[ROOM + side]
    write_line(line, side, next_number(shortfall, LISTED + side), shortfall)
    if Boolean(is_early) and room >= FEWEST_EARLY:
        number = next_number(shortfall, EARLY_LISTED + side)
        if number >= room * EARLY_SHARE[0] // EARLY_SHARE[1]:
            refuse(shortfall)


@cute.jit
def write_line(line: Any, side: Any, number: Any, shortfall: cute.Tensor):
    """Write the `number`-th listed line; refuse the product where there is no room for it."""
    if number < shortfall[ROOM + side]:
        listed(shortfall, side)[number] = line
    else:
        refuse(shortfall)


@cute.jit
def refuse(shortfall: cute.Tensor):
    """Refuse the product."""
    cute.arch.atomic_max(shortfall.iterator, Int32(NEVER), sem="relaxed", scope="gpu")


def next_number(shortfall: Any, word: Any) -> Any:
    """Return how many lines a word has counted, and count one more."""
    return cute.arch.atomic_add(shortfall.iterator + word, Int32(1), sem="relaxed", scope="gpu")


def listed(shortfall: Any, side: Any) -> Any:
    """Return the list of a side: that of columns is behind the room for rows."""
    first = SHORTFALL_WORDS + side * shortfall[ROOM]
    return cute.make_tensor(shortfall.iterator + first, cute.make_layout(shortfall[ROOM + side]))
