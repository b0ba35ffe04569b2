"""Rasters: the order of CTAs over the tiles of C."""

from __future__ import annotations

import cutlass
from cutlass import cute


@cute.jit
def grouped_tile(cta, tiles_m, tiles_n, group: cutlass.Constexpr[int]):
    """Return the tile (row, column) of a CTA: down `group` tiles, then one to the right, then the next group.

    Concurrent CTAs then form a block rather than a stripe: they read fewer different rows of A and columns of B, and
    more of them hit the L2 cache.
    """
    first = cta // (group * tiles_n) * group
    rows = cutlass.min(tiles_m - first, group)
    inside = cta - first * tiles_n
    return first + inside % rows, inside // rows


@cute.jit
def block_triangle_tile(
    cta, tiles_m, first, up: cutlass.Constexpr[int], over: cutlass.Constexpr[int], group: cutlass.Constexpr[int]
):
    """Return the tile (row, column) of a CTA of a block lower triangle, in groups as `grouped_tile`.

    The first `up` rows of tiles have ``first + over`` tiles each, the next `up` rows `over` more; `group` is a multiple
    of `up`. No CTA is without a tile.
    """
    steps = cutlass.const_expr(group // up)
    # The tiles of the next group; each later one has a constant number more.
    count = group * first + up * over * (steps * (steps + 1) // 2)
    top, left = cutlass.Int32(0), cutlass.Int32(cta)
    while left >= count:
        left -= count
        count += group * steps * over
        top += group
    rows = cutlass.min(tiles_m - top, group)
    # Columns that all rows of the group have, down and then to the right.
    wide = first + (top // up + 1) * over
    row, column = left % rows, left // rows
    left -= rows * wide
    if left >= 0:
        # Then the steps: each column begins further down.
        for step in cutlass.range_constexpr(over * (steps - 1)):
            skipped = cutlass.const_expr((step // over + 1) * up)
            if left >= 0:
                row, column = skipped + left, wide + step
                left -= rows - skipped
    return top + row, column
