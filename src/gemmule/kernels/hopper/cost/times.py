"""Times of products on Hopper's persistent kernels, predicted for many configs at once.

Three limits hold together, and a correction that was learned from measured times follows: see docs/dispatch.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig

from .correction import NUMBERS, correction, product_numbers
from .rates import Numbers, Operation, TileRates, parts_of_k

#: Quantities that the correction reads of the limits.
_QUANTITIES, _WAVES = 12, 3
#: Configs that the correction is evaluated for: up to a number all, else so many, of each of two products fewer,
#: or half where there are not twice as many; and at least a share of all. Of 8-bit floats, promotions are added then.
_ALL, _LEAD, _LEAD_OF_TWO, _SHARE, _SHARE_FLOAT8 = 8, 24, 16, 7, 2
#: Time of `split_k` for each part that the last one adds, of 64 x 64 sums of a warpgroup. Fitted to record
#: 20261129T054750, an H200.
_PART_SUMS = 0.4


@cache_for_configs
def rates_of(configs: Sequence[HopperGemmConfig], gpu: GpuRates = H200_RATES, own: int | None = None) -> TileRates:
    """Return the rates of a list of configs on a GPU; parameters as of `TileRates`."""
    return TileRates(configs, gpu, own)


def times_us(operation: Operation, rates: TileRates) -> Numbers:
    """Return roughly the time in microseconds of every config.

    The correction is evaluated for the configs that lead by the limits; the others' times are those of the limits by
    the largest factor of these, so that none of them is the least. Configs with `split_k` are for products of one wave:
    in several, where K stays whole, nearly none was timed.

    Parameters
    ----------
    operation : Operation
        The product.
    rates : TileRates
        The configs, on a GPU: those with swap_ab compute the transpose.
    """
    total, quantities = limits(operation, rates)
    several = rates.split_k[quantities[_WAVES].take(rates.split_k) > 1]
    leading = _leading(operation, rates, total)
    factors = correction(rates, operation, quantities, leading)
    found: Numbers = total * factors.max()
    found[leading] = total.take(leading) * factors
    found[several] = np.inf
    return found


def leading_count(count: int, float8: bool, lead: int = _LEAD) -> int:
    """Return for how many of so many configs the correction is evaluated."""
    share = _SHARE_FLOAT8 if float8 else _SHARE
    return max(min(count, _ALL), min(lead, count // 2), count // share)


def _leading(operation: Operation, rates: TileRates, total: Numbers) -> Numbers:
    """Return the places of the configs that lead by the limits, of a product and of a prepared one."""
    if rates.own == rates.count:
        return _first(total, leading_count(rates.count, operation.float8))
    own, others = (
        _first(part, leading_count(part.size, operation.float8, _LEAD_OF_TWO))
        for part in (total[: rates.own], total[rates.own :])
    )
    return np.concatenate((own, others + rates.own))


def _first(total: Numbers, count: int) -> Numbers:
    """Return the places of the least so many."""
    return np.arange(count) if count == total.size else total.argpartition(count)[:count]


def limits(operation: Operation, rates: TileRates) -> tuple[Numbers, Numbers]:
    """Return the microseconds in which three limits hold together, and quantities that the correction reads of both.

    These have a row for each quantity, the product's numbers last, and a column for each config.
    The limits are what an SM computes, tile after tile; what the L2 cache delivers; and what memory moves.
    """
    # NumPy's calls take longer than what they compute: each result is written to where it is read.
    layout = rates.of_layout(operation)
    numbers = rates.of_sides(operation.rows, operation.cols, operation.k_tiles, *product_numbers(operation))
    extents = numbers[:3] / rates.cluster_shape
    whole = np.ceil(extents)
    quantities = np.empty((_QUANTITIES + NUMBERS, rates.count))
    quantities[_QUANTITIES:] = numbers[3:]
    waves, each = quantities[_WAVES], quantities[4]
    tiles = whole[0] * whole[1]
    if operation.tiles is not None:
        tiles = np.array(operation.tiles, np.float64)
    elif operation.batch != 1:
        tiles *= operation.batch
    once, each[:] = layout.once, whole[2]
    delivered = np.multiply(tiles, numbers[2], out=quantities[2])
    delivered *= layout.carried
    if rates.split_k.size:
        once = _divide(rates, tiles, each, once, operation.k_tiles)
    in_turn = tiles / rates.max_active_clusters
    np.ceil(in_turn, out=waves)
    np.divide(in_turn, waves, out=quantities[7])
    both = np.greater(tiles, rates.alone)
    quantities[11] = both
    multiplied = np.multiply(each, np.where(both, layout.both, layout.alone), out=quantities[5])
    computed = np.add(multiplied, layout.write, out=quantities[1])
    computed *= waves
    computed += once
    # The fourth root of the sum of fourth powers.
    powers = quantities[1:3] * quantities[1:3]
    powers *= powers
    total = np.add(powers[0], powers[1], out=quantities[0])
    moved = (operation.read + operation.written) / rates.gpu.memory
    total += moved * moved * moved * moved
    np.sqrt(total, out=total)
    np.sqrt(total, out=total)
    total += rates.launch
    np.reciprocal(waves, out=quantities[6])
    np.divide(extents[:2], whole[:2], out=quantities[8:10])
    np.minimum(tiles * rates.cluster_share, rates.share, out=quantities[10])
    return total, quantities


def _divide(rates: TileRates, tiles: Numbers, each: Numbers, once: Numbers, k_tiles: int) -> Numbers:
    """Divide K of the configs with `split_k`: change their tiles, k-tiles of each, and return what is added once."""
    places = rates.split_k
    whole = tiles.take(places)
    parts = parts_of_k(rates.split_clusters, whole, k_tiles)
    if parts.max() == 1:
        return once
    tiles[places] = whole * parts
    each[places] = np.ceil(k_tiles / parts)
    once = once.copy()
    once[places] += _PART_SUMS * rates.gpu.load * rates.split_sums * (parts - 1)
    return once
