"""What a product takes on Hopper's persistent kernels, predicted for many configs at once.

Three limits hold together, and a correction that was learned from measured times follows: see docs/dispatch.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemmule.kernels.hopper.gemm.config import ProductionConfig

from .correction import chip_rates, correction
from .rates import Numbers, Operation, TileRates

#: Microseconds of a launch.
_LAUNCH = 1.9
#: How much longer each byte beyond two of an element of the result takes to be written.
_WIDER = 0.344
#: What stream-K adds: bytes a microsecond of sums that all multiprocessors leave and read, which is assumed; and, as
#: measured on an H200 within a sixth, of sums that one of them reads, and zeros for the flags with launches that do not
#: overlap then.
_LEFT, _LEFT_TO_ONE, _ZEROS = 5.5e6, 0.028e6, 4.0
# Lists of configs whose rates are kept.
_MOST_KNOWN = 16


# What was worked out for a kernel's own configs, which are asked for again and again; by where those lie.
_known: dict[int, TileRates] = {}


def rates_of(configs: Sequence[ProductionConfig]) -> TileRates:
    """Return what a list of configs decides, remembered for a kernel's own."""
    known = _known.get(id(configs))
    if known is not None and known.configs is configs:
        return known
    rates = TileRates(configs)
    if isinstance(configs, tuple) and len(_known) < _MOST_KNOWN:
        _known[id(configs)] = rates
    return rates


def times_us(one: Operation, configs: Sequence[ProductionConfig], multiprocessors: int) -> list[float]:
    """Return roughly the time in microseconds of every config.

    Parameters
    ----------
    one : Operation
        The product.
    configs : sequence of ProductionConfig
        The configs: those with swap_ab compute the transpose.
    multiprocessors : int
        The GPU's.
    """
    of = rates_of(configs)
    total, mixed = limits(one, of, multiprocessors)
    times: list[float] = (total * correction(of, one, mixed, multiprocessors)).tolist()
    return times


def limits(one: Operation, of: TileRates, multiprocessors: int) -> tuple[Numbers, Numbers]:
    """Return the microseconds in which three limits hold together, and what the correction reads of them.

    The limits are what an SM computes, tile after tile; what the L2 cache delivers; and what memory moves.
    """
    operands, chip = of.operands(one.a, one.b), of.on_chip(multiprocessors)
    extents = of.of_sides(one.rows, one.cols)
    whole = np.ceil(extents / of.cluster_tile)
    tiles = whole[0] * whole[1]
    inside = extents / (whole * of.cluster_tile)
    if one.tiles is not None:
        tiles = np.array(one.tiles, np.float64)
    elif one.batch != 1:
        tiles *= one.batch
    waves = np.ceil(tiles / chip.clusters)
    fill = tiles / (waves * chip.clusters)
    both = tiles > chip.alone
    each = np.ceil(one.k_tiles / of.cluster_k)
    left: Any = 0.0
    if of.any_stream_k:
        waves, each, left = _shared_out(of, tiles, chip.clusters, waves, each, one.k_tiles)
    multiplied = each * np.where(both, operands.both, operands.one)
    writes = one.writes * (1 + _WIDER * (one.result_item - 2))
    computed = waves * (multiplied + writes * of.write_tile) + writes * of.write_last + of.once + left
    carried = operands.carried * (tiles * one.k_tiles)
    memory = (one.read + one.written) / chip_rates().memory
    squares = computed * computed, carried * carried, memory * memory
    total = _LAUNCH + np.sqrt(np.sqrt(sum(square * square for square in squares)))
    mixed = np.empty((12, total.size))
    mixed[0], mixed[1], mixed[2], mixed[3], mixed[4], mixed[5] = total, computed, carried, waves, each, multiplied
    np.log2(mixed[:6], out=mixed[:6])
    ctas = np.minimum(tiles * of.cluster, chip.ctas)
    mixed[6], mixed[7], mixed[8:10], mixed[10], mixed[11] = 1 / waves, fill, inside, ctas / multiprocessors, both
    return total, mixed


def _shared_out(of: TileRates, tiles: Any, at_once: Any, waves: Any, each: Any, k_tiles: int) -> tuple[Any, Any, Any]:
    """Return waves, k-tiles of each, and what is added, where stream-K shares out the last waves' k-tiles evenly."""
    splits = of.stream_k & (tiles % at_once > 0)
    sharers = np.minimum(at_once, tiles * k_tiles)
    fewer = np.maximum(tiles / at_once, 1)
    every = (tiles * k_tiles + (sharers - 1)) // sharers
    moved = 2 * of.sum_bytes * sharers * of.cluster / _LEFT
    read = of.sum_bytes * np.maximum(sharers / tiles, 1) / _LEFT_TO_ONE
    left = of.stream_k * _ZEROS + splits * np.maximum(moved, read)
    return np.where(splits, fewer, waves), np.where(splits, every / fewer, each), left
