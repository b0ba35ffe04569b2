"""Which elements of a result are needed, where these are not all of them: what lies on and below a staircase."""

from __future__ import annotations

import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class BlockTriangle:
    """Of the first `step` rows the columns before ``first + step`` are needed, of the next ones `step` columns more.

    Of a square result ``BlockTriangle(0, 1)`` is what lies on and below the diagonal; of its rows from `r` on,
    ``BlockTriangle(r, 1)``. With higher steps squares on the diagonal are needed as a whole.

    Attributes
    ----------
    first : int
        Columns to the left of the first step, which all rows need.
    step : int
        Rows and columns of a step.
    """

    first: int = 0
    step: int = 1

    def columns(self, row: int) -> int:
        """Return how many columns of a row are needed, where the result has so many."""
        return self.first + (row // self.step + 1) * self.step

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - small numbers, asked for again and again
    def tiles(self, rows: int, cols: int, tall: int = 1, wide: int = 1) -> int:
        """Return how many tiles of that size hold what is needed of a result; without a size, how many elements.

        The heights of tiles divide the steps.
        """
        tops = range(0, rows, self.step)
        return sum(-(-min(self.step, rows - top) // tall) * -(-min(self.columns(top), cols) // wide) for top in tops)
