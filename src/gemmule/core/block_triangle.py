"""Block lower triangles: the needed elements of a result."""

from __future__ import annotations

import functools

from gemmule.core.dataclass import dataclass

#: Step of the block triangles that SYRK kernels compute: a multiple of the extents of their tiles.
STEP = 256


@dataclass(frozen=True)
class BlockTriangle:
    """A block lower triangle: the first `step` rows need ``first + step`` columns, the next `step` more, and so on.

    ``BlockTriangle(0, 1)`` is the lower triangle of a square result, ``BlockTriangle(r, 1)`` that of its rows from `r`
    on.
    """

    first: int = 0  #: Columns to the left of the first diagonal block.
    step: int = 1  #: Rows and columns of a diagonal block.

    def columns(self, row: int) -> int:
        """Return the number of needed columns of a row, in a result that is wide enough."""
        return self.first + (row // self.step + 1) * self.step

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - small keys, called repeatedly
    def tiles(self, rows: int, cols: int, tall: int = 1, wide: int = 1) -> int:
        """Return the number of tiles with needed elements; of elements, without a tile size. `tall` divides `step`."""
        tops = range(0, rows, self.step)
        return sum(-(-min(self.step, rows - top) // tall) * -(-min(self.columns(top), cols) // wide) for top in tops)
