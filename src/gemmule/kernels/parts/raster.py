"""Rasters: the order of CTAs over the tiles of C."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
from cutlass import Int32, Uint32, cute


class Divisor(NamedTuple):
    """A positive divisor of many numbers below 2**31, and the floor of (2**31 - 1) over it."""

    value: Any
    reciprocal: Any

    @classmethod
    def of(cls, value: Any) -> Divisor:
        """Return the divisor, by the one division that there is."""
        return cls(Int32(value), Int32(0x7FFFFFFF) // Int32(value))

    def quotient(self, number: Any) -> Any:
        """Return the floor of a number, not negative, over the divisor."""
        # At most one too few, as the reciprocal is too small by at most 1.
        least = Int32(cute.arch.mul_hi(Uint32(number << 1), Uint32(self.reciprocal)))
        return least + Int32(number - least * self.value >= self.value)


class RasterDivisors(NamedTuple):
    """Divisors of tile indices: a matrix's tiles, those of a group of rows, and the last group's rows."""

    matrix: Divisor
    group: Divisor
    last_rows: Divisor


def raster_divisors(tiles_m: Any, tiles_n: Any, group: int) -> RasterDivisors:
    """Return the divisors for many tiles of a grid."""
    last_rows = cutlass.max(tiles_m % group, 1)
    return RasterDivisors(*(Divisor.of(value) for value in (tiles_m * tiles_n, group * tiles_n, last_rows)))


@cute.jit
def divided_tile(cta, tiles_m, tiles_n, group: cutlass.Constexpr[int], divisors):
    """Return the tile of `grouped_tile`, by multiplications."""
    first = divisors.group.quotient(cta) * group
    rows = cutlass.min(tiles_m - first, group)
    inside = cta - first * tiles_n
    column = divisors.last_rows.quotient(inside)
    if rows == group:
        column = inside // group
    return first + inside - column * rows, column


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
