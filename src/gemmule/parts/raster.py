"""The order in which CTAs take the tiles of C."""

from __future__ import annotations

import cutlass
from cutlass import cute


@cute.jit
def grouped_tile(cta, tiles_m, tiles_n, group: cutlass.Constexpr[int]):
    """Return the tile (row, column) of a CTA: down `group` tiles, then one to the right, then the next group.

    CTAs that run at the same time then form a block rather than a stripe: they read fewer different rows of A and
    columns of B, and find more of them in the L2 cache.
    """
    first = cta // (group * tiles_n) * group
    rows = cutlass.min(tiles_m - first, group)
    inside = cta - first * tiles_n
    return first + inside % rows, inside // rows
