"""Times in which Hopper's persistent kernels multiply nothing, besides those of the tiles themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.block_scales import BLOCK
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.tile_config import (
    COLUMN_SCALED_N,
    EPI_TILE_N,
    HALVED_N,
    MAX_OVERLAPPED_N,
    MAX_PROMOTED_N,
    MAX_SCALED_N,
)

from .edges import narrow_columns_of
from .rates import Numbers, Operation, TileRates

#: Microseconds that promoting the accumulators of a k-tile of 8-bit floats takes, and more for each column of the tile:
#: of ping-pong configs, and of cooperative ones. Fitted to record 20261124T203334 (an H100).
PROMOTE_US = (0.0269, 0.000262), (0.00118, 0.0)
#: Microseconds more of a k-tile where CTAs share loads, as all wait for the last to promote: of ping-pong configs, and
#: of cooperative ones of so many columns or more. On an H100, two CTAs took 2 to 7 % longer at 4096 x 14336 x 4096 and
#: 4096 x 4096 x 14336; ping-pong and narrower tiles, which took no longer, are of record 20261129T080830, an H200.
_SHARED_US, _SHARED_N = (0.009, 0.004), 128
#: Microseconds more of a tile of cooperative configs of up to so many columns, for up to so many k-tiles, and none for
#: twice as many; of record 20261129T083421, an H200.
_SHORT_US, _SHORT_N, _SHORT_K = 0.22, 48, 12
#: Microseconds more of a k-tile of cooperative configs whose columns are promoted in halves one after the other, and
#: more of those whose halves are no whole epilogue tiles; fitted to tiles of 128, 192, 224 and 256 columns of three
#: large products on an H200.
_HALVED_US, _UNEVEN_US = 0.0195, 0.062
#: Microseconds more of a k-tile of cooperative configs of 128 rows and so many columns, in several waves; the same
#: products.
_COLUMNS_US = {128: -0.007, 176: -0.0056}
#: Microseconds more of a tile of 128 x 176, whose epilogue tiles are half as wide as it is; six products of rows and
#: columns with scales on an H200.
_WIDE_EPILOGUE_US = -0.44
#: The same of a k-tile of 128 x 128 without scales by blocks, since lanes share those of columns: nine products by rows
#: and columns on an H200.
_SQUARE_US = -0.018
#: Rows of tiles of a raster by which a wave of wide tiles is nearly a square, and what a k-tile gains.
_RASTER, _RASTER_US = 16, -0.006
#: Microseconds that a CTA of so many tiles or more gains of each k-tile of 192 columns, without scales by blocks, in a
#: pair that shares loads: at the limit of power fewer bytes from L2 leave more for the rest. Three large products on
#: both chips; of 11 drawn ones on an H200 whose choice it changed, none took 1 % longer, and half 4 % less or more.
_SEVERAL, _PAIR_US = 4, -0.014
#: Microseconds that a k-tile of 128 columns takes longer with a scale for a block of columns, of more columns of which
#: one half is promoted while the other is multiplied, of more that are promoted at once, and with a scale for each
#: column.
_SCALED_US = {"blocks": 0.10, "halves": 0.055, "whole": 0.30, "columns": 0.16}
#: Less of one of 128 x 128 with a scale for each column, whose loop has a second one for narrow tiles behind it. Fitted
#: to seven drawn products on an H200, judged by seven others.
_TWO_LOOPS_US = 0.06
#: Less than that with a scale for each column, for each column beyond 128.
_HIDDEN_US = 0.0012
#: Microseconds more of a cooperative k-tile with scales by blocks where CTAs share loads. Fitted to 92 times of drawn
#: products of 36 k-tiles or more on an H200.
_SHARED_SCALED_US = 0.06
#: Less for the tile whose next stage is tested ahead; fitted as the tall tiles' times.
_AHEAD_US = 0.017
#: Microseconds more of a k-tile of 256 rows with a scale for each column, and of each beyond a number of k-tiles:
#: epilogues, which power does not limit, count less than predicted, k-tiles more. Fitted to 96 and 112 columns of three
#: large products on an H200.
_TALL_US, _LONG_US, _LONG_K = 0.05, 0.15, 32
#: Microseconds more of a tile whose epilogue tiles have 16 columns, and of one of 256 rows whose epilogue tiles are
#: half as wide as it is, if it has more than so many columns; of the same products.
_NARROW_US, _HALF_US, _NARROW_N = 2.5, 1.5, 96
#: Gain per such k-tile of a pair that shares loads where its rows divide those of the product, or loss where they
#: do not: three large products on both chips, and draws on an H200 of which no rows divide.
_TALL_PAIR_US = -0.04
#: Bytes of loads in flight beyond which up to so many rows take longer, and the share: with 6 stages instead of 12 and
#: 11, 1 and 16 rows by 14336 x 4096 took 2 to 3 % less on an H200, and are predicted to take more. The same of
#: cooperative CTAs by themselves: with 5 stages instead of 6, 128 rows took 3 % less.
_IN_FLIGHT, _CONTENTION_ROWS, _CONTENTION = 16e6, 16, 0.09
_ALONE_IN_FLIGHT, _ALONE_ROWS, _ALONE = 21e6, 128, 0.02
#: Microseconds of an epilogue, or of C, of 2**15 elements of 8-bit floats, where the other warpgroup does not multiply
#: meanwhile, of a CTA's last tile; and of those before it, during which the next one's first stages are loaded. Set in
#: view of six drawn products on an H200; 30 of a fresh seed that it changes take 0.80 of the time in the mean.
_LAST_EPILOGUE_US, _EPILOGUE_US = 5.0, 1.0


def promote_us(operation: Operation, rates: TileRates) -> Numbers:
    """Return the time that promoting the accumulators of 8-bit floats adds.

    Parameters
    ----------
    operation : Operation
        The product.
    rates : TileRates
        The configs, on a GPU.
    """
    terms = promotion_terms(operation, rates)
    # The first is of the k-tiles of ping-pong configs, the third of those of cooperative ones.
    halved, uneven = rates.tile[1] > MAX_PROMOTED_N, rates.tile[1] % EPI_TILE_N > 0
    shared, (pingpong_us, cooperative_us) = rates.cluster_size > rates.cluster_k, _SHARED_US
    more = cooperative_us * shared * (rates.tile[1] >= _SHARED_N) + halved * (_HALVED_US + _UNEVEN_US * uneven)
    more = more + _PAIR_US * _is_wide_pair(operation, rates)
    more = more + rates.cached("columns", lambda: rates.each(_columns_us)) * (_waves(operation, rates) > 1)
    more = more + _SQUARE_US * _is_square(operation, rates)
    found: Numbers = np.array(PROMOTE_US).ravel() @ terms + more * terms[2] + pingpong_us * shared * terms[0]
    found += _waves(operation, rates) * rates.gpu.load * rates.cached("narrow", lambda: rates.each(_narrow_us))
    short = min(max(2 - operation.k_tiles / _SHORT_K, 0.0), 1.0)
    if short:
        found += (
            _SHORT_US
            * short
            * rates.gpu.load
            * _waves(operation, rates)
            * ((rates.tile[1] <= _SHORT_N) & (rates.pingpong == 0))
        )
    return found


def _columns_us(config: HopperGemmConfig) -> float:
    """Return the time that a k-tile takes longer by its columns, in CTAs by themselves."""
    if config.cluster_size > 1 or config.tile_m != BLOCK:
        return 0.0
    if config.tile_n > MAX_PROMOTED_N and config.group == _RASTER:
        return _RASTER_US
    return _COLUMNS_US.get(config.tile_n, 0.0)


def _narrow_us(config: HopperGemmConfig) -> float:
    """Return the time that a tile takes longer whose columns are an odd multiple of 16."""
    if config.pingpong or config.swap_ab or config.tile_n <= _NARROW_N or config.tile_n % 32 != 16:
        return 0.0
    if (config.tile_m, config.tile_n, config.cluster_size) == (BLOCK, 176, 1):
        return _WIDE_EPILOGUE_US
    return _NARROW_US if config.epi_tile_n(2) == 16 else _HALF_US * (config.mma_tiles_m - 1)


def scaled_us(operation: Operation, rates: TileRates, lines: tuple[int, int]) -> Numbers:
    """Return the time that scales by blocks add to promotions.

    Parameters
    ----------
    operation, rates
        As of `promote_us`.
    lines : tuple of int
        Lines of a block of the operand that gives the result's rows, and of that which gives its columns: 1 or 128.
    """
    columns = np.minimum(rates.tile[1], BLOCK) / BLOCK
    by_columns = _SCALED_US["columns"] - _HIDDEN_US * np.maximum(rates.tile[1] - BLOCK, 0)
    by_columns -= _AHEAD_US * (rates.tile[1] == COLUMN_SCALED_N)
    by_columns -= _TWO_LOOPS_US * (narrow_columns_of(rates, lines) > 0)
    whole = (rates.tile[1] > BLOCK) & (rates.tile[1] % HALVED_N > 0)
    halves = (rates.tile[1] > BLOCK) & (rates.tile[1] <= MAX_OVERLAPPED_N)
    by_blocks = np.select([whole, halves], [_SCALED_US["whole"], _SCALED_US["halves"]], _SCALED_US["blocks"])
    columns_scaled = np.array(lines)[1 - rates.side] == 1
    each = np.where(columns_scaled, by_columns, by_blocks) * columns - _PAIR_US * _is_wide_pair(operation, rates)
    each -= _SQUARE_US * _is_square(operation, rates)
    each += _SHARED_SCALED_US * ((rates.cluster_size > rates.cluster_k) & (rates.pingpong == 0))
    tall = columns_scaled & (rates.tile[0] > BLOCK)
    extents = rates.of_sides(operation.rows, operation.cols) / rates.cluster_tile
    fits = (extents[0] % 1 == 0) & (_waves(operation, rates) >= _SEVERAL)
    each += tall * (_TALL_US + _TALL_PAIR_US * (rates.cluster_size == 2) * np.where(fits, 1, -1))
    longer = tall * _LONG_US * max(operation.k_tiles - _LONG_K, 0)
    found: Numbers = (
        _waves(operation, rates) * (np.ceil(operation.k_tiles / rates.cluster_k) * each + longer) * rates.gpu.load
    )
    return found


def fp8_contention(operation: Operation, rates: TileRates) -> Numbers | float:
    """Return the factor of the times of 8-bit floats of few rows by the bytes of loads in flight.

    Parameters as of `promote_us`.
    """
    rows = min(operation.rows, operation.cols)
    if rows > _ALONE_ROWS:
        return 1.0
    whole = np.ceil(rates.of_sides(operation.rows, operation.cols) / rates.cluster_tile)
    ctas = np.minimum(whole[0] * whole[1] * operation.batch, rates.max_active_clusters) * rates.cluster_size
    stages = rates.cached("stages", lambda: rates.each(lambda config: config.stages_bytes))
    found: Numbers
    if rows <= _CONTENTION_ROWS:
        found = 1 + _CONTENTION * (ctas * stages > _IN_FLIGHT)
    else:
        alone = (rates.cluster_size == 1) & (rates.pingpong == 0)
        found = 1 + _ALONE * (alone & (ctas * stages > _ALONE_IN_FLIGHT))
    return found


def promotion_terms(operation: Operation, rates: TileRates) -> Numbers:
    """Return what each number of `PROMOTE_US` is multiplied by, a row for each; parameters as of `promote_us`."""
    k_tiles = _waves(operation, rates) * np.ceil(operation.k_tiles / rates.cluster_k) * rates.gpu.load
    schedules = rates.pingpong, 1 - rates.pingpong
    return np.array([k_tiles * schedule * columns for schedule in schedules for columns in (1, rates.tile[1])])


def epilogue_us(operation: Operation, rates: TileRates, us: float | None = None) -> Numbers:
    """Return the time in which nothing is multiplied, since all warpgroups of a CTA compute an epilogue.

    In ping-pong that is so of the last tile only.

    Parameters
    ----------
    operation, rates
        As of `promote_us`.
    us : float, optional
        Microseconds that a warpgroup takes longer for 2**14 elements; not for 8-bit floats.
    """
    elements, waves = rates.tile[0] * rates.tile[1] / rates.cluster_k, _waves(operation, rates)
    if us is None:
        exposed = (1 - rates.pingpong) * (_LAST_EPILOGUE_US + (waves - 1) * _EPILOGUE_US) / 2**15
    else:
        exposed = np.where(rates.pingpong, 1.0, waves / 2) * (us / 2**14)
    found: Numbers = exposed * elements * rates.gpu.load
    return found


def _is_wide_pair(operation: Operation, rates: TileRates) -> Any:
    """Return whether two CTAs share loads of tiles with as many columns as are promoted at once, and have several."""
    wide = (rates.tile[1] > MAX_SCALED_N) & (rates.tile[1] <= MAX_PROMOTED_N)
    return wide & (rates.cluster_size == 2) & (rates.cluster_k == 1) & (_waves(operation, rates) >= _SEVERAL)


def _is_square(operation: Operation, rates: TileRates) -> Any:
    """Return whether cooperative tiles are squares of 128, in CTAs by themselves that have several."""
    square = (rates.tile[0] == BLOCK) & (rates.tile[1] == BLOCK) & (rates.pingpong == 0)
    return square & (rates.cluster_size == 1) & (_waves(operation, rates) > 1)


def _waves(operation: Operation, rates: TileRates) -> Numbers:
    """Return how many tiles the busiest CTA computes."""
    whole = np.ceil(rates.of_sides(operation.rows, operation.cols) / rates.cluster_tile)
    found: Numbers = np.ceil(whole[0] * whole[1] * operation.batch / rates.max_active_clusters)
    return found
