"""The guard's lists of rows and columns that the native kernel computes beside an emulated product."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, cute

from gemmule.kernels.emulation.guard_words import LISTED, NEVER, ROOM, SHORTFALL_WORDS


@cute.jit
def is_refused(shortfall: cute.Tensor):
    """Return whether the guard refuses already; CTAs of the same grid may do so meanwhile."""
    return cute.arch.load(shortfall.iterator, Int32, sem="relaxed", scope="gpu") == NEVER


@cute.jit
def list_line(line: Any, side: Any, shortfall: cute.Tensor):
    """List a row of A (`side` 0) or a column of B (1); refuse the product where there is no room for it."""
    number = cute.arch.atomic_add(shortfall.iterator + LISTED + side, Int32(1), sem="relaxed", scope="gpu")
    if number < shortfall[ROOM + side]:
        listed(shortfall, side)[number] = line
    else:
        cute.arch.atomic_max(shortfall.iterator, Int32(NEVER), sem="relaxed", scope="gpu")


def listed(shortfall: Any, side: Any) -> Any:
    """Return the list of a side: that of columns is behind the room for rows."""
    first = SHORTFALL_WORDS + side * shortfall[ROOM]
    return cute.make_tensor(shortfall.iterator + first, cute.make_layout(shortfall[ROOM + side]))
