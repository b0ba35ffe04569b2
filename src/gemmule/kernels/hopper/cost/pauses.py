"""Times in which Hopper's persistent kernels multiply nothing, beside those of the tiles themselves."""

from __future__ import annotations

import numpy as np

from .rates import Numbers, Operation, TileRates

#: Microseconds that promoting the accumulators of a k-tile of 8-bit floats takes, and more for each column of the tile:
#: of ping-pong configs, and of cooperative ones.
PROMOTE_US = (0.0269, 0.000262), (0.00118, 0.0)
#: Microseconds more of a k-tile of cooperative configs for each further CTA that shares loads: all of them wait for the
#: last to promote. On an H100, two CTAs took 2 to 7 % longer at 4096 x 14336 x 4096 and 4096 x 4096 x 14336.
_SHARED_US = 0.004
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
    shared = _SHARED_US * (of.cluster / of.cluster_k - 1) * terms[2]
    found: Numbers = np.array(PROMOTE_US).ravel() @ terms + shared
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


def _waves(one: Operation, of: TileRates) -> Numbers:
    """Return how many tiles the busiest CTA computes."""
    whole = np.ceil(of.of_sides(one.rows, one.cols) / of.cluster_tile)
    found: Numbers = np.ceil(whole[0] * whole[1] * one.batch / of.clusters)
    return found
