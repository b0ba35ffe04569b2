"""In which order panels of one side meet those of the other, where those of one side stay."""

from __future__ import annotations

import itertools
from collections.abc import Iterator


def panel_groups(outer: int, outer_held: int, opening: int) -> int:
    """Return how often all panels of one side pass by those of the other: how many groups of these there are."""
    group, first = _grouped(outer, outer_held, opening)
    return 1 + max(-(-(outer - first) // group), 0)


def _grouped(outer: int, outer_held: int, opening: int) -> tuple[int, int]:
    """Return how many panels of the outer side stay together, and how many of them at first."""
    # One slot of each side takes the next panel meanwhile.
    group = max(outer_held - (outer_held < outer), 1)
    return group, min(opening or group, group)


def panel_order(
    outer: list[int], inner: list[int], outer_held: int, inner_held: int, opening: int
) -> Iterator[tuple[int, int]]:
    """Yield pairs so that every `outer_held` panels of one side meet all of the other, with few loads.

    At the start, panels of both sides come so that as many rows as columns are there, and each meets all that are
    there: what there is to compute grows as fast as it can. Later groups first meet the panels that the group before
    has left.

    Parameters
    ----------
    outer, inner : list of int
        Heights of the panels of each side.
    outer_held, inner_held : int
        Panels of each side that the device holds.
    opening : int
        Panels of the outer side that meet the others first, if not as many as later.
    """
    group, first = _grouped(len(outer), outer_held, opening)
    held = max(inner_held - 1, 1)
    for number, start in enumerate((0, *range(first, len(outer), group))):
        members = range(start, min(start + (group if number else first), len(outer)))
        order = range(len(inner))
        passing = list(order if number % 2 == 0 else reversed(order))
        there, coming = passing[:held], passing[held:]
        if number == 0:
            yield from _growing([outer[member] for member in members], [inner[other] for other in there])
        else:
            yield from itertools.product(members, there)
        for other in coming:
            yield from ((member, other) for member in members)


def _growing(outer: list[int], inner: list[int]) -> Iterator[tuple[int, int]]:
    """Yield all pairs, a panel of the side with less of it next, and each with all of the other side so far."""
    members = others = 0
    while members < len(outer) or others < len(inner):
        behind = sum(outer[:members]) <= sum(inner[:others])
        if others == len(inner) or (members < len(outer) and behind):
            yield from ((members, other) for other in range(others))
            members += 1
        else:
            yield from ((member, others) for member in range(members))
            others += 1
