"""Share of the predicted times that narrow tiles at the right edge leave, with a scale for each column of a k-tile."""

from __future__ import annotations

import numpy as np

from gemmule.kernels.hopper.scale_stages import narrow_columns

from .rates import Numbers, Operation, TileRates

#: Time of a narrow tile over that of a whole one.
_NARROW = 0.6


def narrow_columns_of(rates: TileRates, lines: tuple[int, int]) -> Numbers:
    """Return the columns of every config's narrow tiles, 0 where it has none; `lines` as of `edge_share`."""
    if lines != (1, 1):
        return np.zeros(rates.count)
    return rates.cached("narrow columns", lambda: rates.each(lambda config: narrow_columns((1, 1), config)))


def edge_share(operation: Operation, rates: TileRates, lines: tuple[int, int]) -> Numbers:
    """Return the share of its tiles' time that the busiest cluster takes; narrow ones come last.

    Parameters
    ----------
    operation : Operation
        The product.
    rates : TileRates
        The configs, on a GPU.
    lines : tuple of int
        Lines of a block of the operand that gives the result's rows, and of that which gives its columns: 1 or 128.
    """
    most = narrow_columns_of(rates, lines)
    extents = rates.of_sides(operation.rows, operation.cols)
    rows, cols = np.ceil(extents / rates.cluster_tile)
    left = extents[1] - (cols - 1) * rates.cluster_tile[1]
    narrow = np.where(left <= most, rows, 0)
    # Of clusters that have a tile more than others, the last is narrow, or the last two are.
    whole, more = np.divmod(rows * cols, rates.max_active_clusters)
    last = np.select(
        [more == 0, narrow >= 2 * more, narrow >= more], [0, max(2 * _NARROW - 1, 0), _NARROW], default=1.0
    )
    found: Numbers = (whole + last) / (whole + (more > 0))
    return found
