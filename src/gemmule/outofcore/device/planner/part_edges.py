"""Edges of the parts that an extent is cut into: even ones, or a first one that is cut again."""

from __future__ import annotations


def edges(extent: int, part: int) -> tuple[int, ...]:
    """Return where parts of that length begin, and the end; only the end where there is nothing."""
    return (*range(0, extent, part), extent)


def ramped(regular: tuple[int, ...], share: int) -> tuple[int, ...]:
    """Cut the first part into parts that double from one in `share` on, the rest unchanged."""
    if len(regular) < 2 or share == 1:
        return regular
    first = regular[1] - regular[0]
    unit = first // share
    # Parts that are no multiple of what kernels copy at once would be slow.
    unit -= unit % 64
    if unit == 0:
        return regular
    cuts = [regular[0] + unit * 2**power for power in range(share.bit_length() - 1)]
    return (regular[0], *cuts, *regular[1:])
