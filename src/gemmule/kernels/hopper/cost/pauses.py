"""Times in which Hopper's persistent kernels multiply nothing, beside those of the tiles themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.block_scales import BLOCK
from gemmule.kernels.hopper.scale_stages import MAX_READ_N
from gemmule.kernels.hopper.tile_config import EPI_TILE_N, MAX_PROMOTED_N, MAX_SCALED_N

from .rates import Numbers, Operation, TileRates

#: Microseconds that promoting the accumulators of a k-tile of 8-bit floats takes, and more for each column of the tile:
#: of ping-pong configs, and of cooperative ones. Fitted to record 20261124T203334 (an H100).
PROMOTE_US = (0.0269, 0.000262), (0.00118, 0.0)
#: Microseconds more of a k-tile of cooperative configs for each further CTA that shares loads: all of them wait for the
#: last to promote. On an H100, two CTAs took 2 to 7 % longer at 4096 x 14336 x 4096 and 4096 x 4096 x 14336.
_SHARED_US = 0.004
#: Microseconds more of a k-tile of cooperative configs whose columns are promoted in halves one after the other, and
#: more of those whose halves are no whole epilogue tiles; fitted to tiles of 128, 192, 224 and 256 columns of three
#: large products on an H200.
_HALVED_US, _UNEVEN_US = 0.02, 0.05
#: Microseconds that a CTA of so many tiles or more gains of each k-tile: in a pair that shares loads, of 192 columns,
#: and again with a scale for a block of columns; and of halved columns where the raster is so many tiles high. At the
#: limit of power fewer bytes from L2 and memory leave more for the rest; three large products on both chips.
_SEVERAL, _PAIR_US, _SCALED_PAIR_US, _RASTER_US, _RASTER = 4, -0.014, -0.016, -0.004, 16
#: Microseconds that a k-tile of 128 columns takes longer with a scale for a block of columns, of columns of which one
#: half is promoted while the other is multiplied, and with a scale for each column.
_SCALED_US = {"blocks": 0.10, "halves": 0.055, "columns": 0.16}
#: Less than that with a scale for each column, for each column beyond 128.
_HIDDEN_US = 0.0012
#: Microseconds more of a k-tile of 128 columns with a scale for each column, where a CTA computes several tiles, and of
#: more columns; of one of 256 rows besides, and of its columns where these are read late; and less for a cluster of
#: two. At the limit of power, where these products are, an epilogue in which nothing is multiplied costs nothing.
#: Fitted to tiles of 128 and 256 rows of three large products on an H100 and an H200.
_TURNS_US, _WIDER_US, _TALL_US, _LATE_US, _CLUSTER_US = 0.047, 0.09, 0.17, 0.15, -0.05
#: Bytes of loads in flight beyond which up to so many rows take longer, and the share: with 6 stages instead of 12 and
#: 11, 1 and 16 rows by 14336 x 4096 took 2 % less on an H200.
_IN_FLIGHT, _CROWDED_ROWS, _CROWDED = 16e6, 16, 0.02
#: Microseconds of an epilogue, or of C, of 2**15 elements, where the other warpgroup does not multiply meanwhile: 1.2
#: to 3.2 were measured on an H200, and tiles of 128 x 128 interleaved were faster there than the times predict.
_FINISH_US = 5.0


def promote_us(one: Operation, of: TileRates) -> Numbers:
    """Return the time that promoting the accumulators of 8-bit floats adds.

    Parameters
    ----------
    one : Operation
        The product.
    of : TileRates
        The configs, on a GPU.
    """
    terms = promotion_terms(one, of)
    # The third is of the k-tiles of cooperative configs.
    halved, uneven = of.tile[1] > MAX_PROMOTED_N, of.tile[1] % EPI_TILE_N > 0
    more = _SHARED_US * (of.cluster / of.cluster_k - 1) + halved * (_HALVED_US + _UNEVEN_US * uneven)
    high = of.remembered("high", lambda: of.each(lambda config: config.group >= _RASTER))
    more = more + (_waves(one, of) >= _SEVERAL) * (_PAIR_US * _is_wide_pair(of) + _RASTER_US * (halved * high))
    found: Numbers = np.array(PROMOTE_US).ravel() @ terms + more * terms[2]
    return found


def scaled_us(one: Operation, of: TileRates, lines: tuple[int, int]) -> Numbers:
    """Return the time that scales by blocks add to promotions.

    Parameters
    ----------
    one, of
        As of `promote_us`.
    lines : tuple of int
        Lines of a block of the operand that gives the result's rows, and of that which gives its columns: 1 or 128.
    """
    columns = np.minimum(of.tile[1], BLOCK) / BLOCK
    by_columns = _SCALED_US["columns"] - _HIDDEN_US * np.maximum(of.tile[1] - BLOCK, 0)
    halves = (of.tile[1] > BLOCK) & (of.tile[1] <= MAX_PROMOTED_N)
    by_blocks = np.where(halves, _SCALED_US["halves"], _SCALED_US["blocks"])
    columns_scaled = np.array(lines)[1 - of.side] == 1
    each = np.where(columns_scaled, by_columns, by_blocks) * columns
    waves = _waves(one, of)
    each += (waves >= _SEVERAL) * (_SCALED_PAIR_US * (_is_wide_pair(of) & ~columns_scaled))
    square = (of.tile[0] * of.tile[1] >= BLOCK * BLOCK) & (of.tile[1] <= BLOCK)
    turns = columns_scaled & square & (waves > 1) & (of.pingpong == 0)
    each += turns * _TURNS_US * columns + (waves >= _SEVERAL) * (_WIDER_US * (columns_scaled & (of.tile[1] > BLOCK)))
    tall = columns_scaled & (of.tile[0] > BLOCK)
    each += tall * (_TALL_US + _LATE_US * (of.tile[1] > MAX_READ_N) + _CLUSTER_US * (of.cluster > 1))
    found: Numbers = waves * np.ceil(one.k_tiles / of.cluster_k) * each * of.gpu.load - turns * finish_us(one, of)
    return found


def crowded(one: Operation, of: TileRates) -> Numbers | float:
    """Return the factor of the times of 8-bit floats of few rows by the bytes of loads in flight.

    Parameters as of `promote_us`.
    """
    if min(one.rows, one.cols) > _CROWDED_ROWS:
        return 1.0
    whole = np.ceil(of.of_sides(one.rows, one.cols) / of.cluster_tile)
    ctas = np.minimum(whole[0] * whole[1] * one.batch, of.clusters) * of.cluster
    stages = of.remembered("stages", lambda: of.each(lambda config: config.stages_bytes))
    found: Numbers = 1 + _CROWDED * (ctas * stages > _IN_FLIGHT)
    return found


def promotion_terms(one: Operation, of: TileRates) -> Numbers:
    """Return what each number of `PROMOTE_US` is multiplied by, a row for each; parameters as of `promote_us`."""
    k_tiles = _waves(one, of) * np.ceil(one.k_tiles / of.cluster_k) * of.gpu.load
    schedules = of.pingpong, 1 - of.pingpong
    return np.array([k_tiles * schedule * columns for schedule in schedules for columns in (1, of.tile[1])])


def finish_us(one: Operation, of: TileRates) -> Numbers:
    """Return the time in which nothing is multiplied, since both warpgroups of a CTA compute an epilogue.

    Parameters as of `promote_us`.
    """
    outputs = of.tile[0] * of.tile[1]
    waves = _waves(one, of)
    found: Numbers = _FINISH_US * waves * outputs / of.cluster_k / 2**15 * ((1 - of.pingpong) * of.gpu.load)
    return found


def _is_wide_pair(of: TileRates) -> Any:
    """Return whether two CTAs share the loads of tiles whose columns are promoted at once, as many as fit."""
    return (of.cluster == 2) & (of.cluster_k == 1) & (of.tile[1] > MAX_SCALED_N) & (of.tile[1] <= MAX_PROMOTED_N)


def _waves(one: Operation, of: TileRates) -> Numbers:
    """Return how many tiles the busiest CTA computes."""
    whole = np.ceil(of.of_sides(one.rows, one.cols) / of.cluster_tile)
    found: Numbers = np.ceil(whole[0] * whole[1] * one.batch / of.clusters)
    return found
