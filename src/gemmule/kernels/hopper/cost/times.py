"""What a product takes on Hopper's persistent kernels, predicted for many configs at once.

Three limits hold together, and a correction that was learned from measured times follows: see docs/dispatch.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig

from .correction import correction
from .rates import Numbers, Operation, TileRates

#: Microseconds of a launch.
_LAUNCH = 1.9
#: How much longer each byte beyond two of an element of the result takes to be written.
_WIDER = 0.344
#: What stream-K adds: bytes a microsecond of sums that all multiprocessors leave and read, which is assumed; and, as
#: measured on an H200 within a sixth, of sums that one of them reads, and zeros for the flags with launches that do not
#: overlap then.
_LEFT, _LEFT_TO_ONE, _ZEROS = 5.5e6, 0.028e6, 4.0


@cache_for_configs
def rates_of(configs: Sequence[HopperGemmConfig], gpu: GpuRates = H200_RATES) -> TileRates:
    """Return what a list of configs decides on a GPU."""
    return TileRates(configs, gpu)


def times_us(one: Operation, of: TileRates) -> Numbers:
    """Return roughly the time in microseconds of every config.

    Parameters
    ----------
    one : Operation
        The product.
    of : TileRates
        The configs, on a GPU: those with swap_ab compute the transpose.
    """
    total, mixed = limits(one, of)
    total *= correction(of, one, mixed)
    return total


def limits(one: Operation, of: TileRates) -> tuple[Numbers, Numbers]:
    """Return the microseconds in which three limits hold together, and what the correction reads of them.

    The limits are what an SM computes, tile after tile; what the L2 cache delivers; and what memory moves.
    """
    operands, gpu = of.operands(one.a, one.b), of.gpu
    mixed = np.empty((12, of.count))
    extents = of.of_sides(one.rows, one.cols, one.k_tiles) / of.cluster_shape
    whole = np.ceil(extents)
    np.divide(extents[:2], whole[:2], out=mixed[8:10])
    rows, cols, each = whole
    tiles = rows * cols
    if one.tiles is not None:
        tiles = np.array(one.tiles, np.float64)
    elif one.batch != 1:
        tiles *= one.batch
    in_turn = tiles / of.clusters
    waves: Any = np.ceil(in_turn)
    np.divide(in_turn, waves, out=mixed[7])
    both = tiles > of.alone
    per_wave, once = of.written(one.writes * (1 + _WIDER * (one.result_item - 2)))
    if of.any_stream_k:
        waves, each, left = _shared_out(of, tiles, waves, each, one.k_tiles)
        once = once + left
    multiplied = each * (operands.one + both * operands.more)
    computed = (multiplied + per_wave) * waves + once
    delivered = tiles * one.k_tiles * operands.carried
    total = computed * computed
    total *= total
    fourth = delivered * delivered
    fourth *= fourth
    total += fourth
    total += ((one.read + one.written) / gpu.memory) ** 4
    np.sqrt(np.sqrt(total, out=total), out=total)
    total += _LAUNCH * gpu.launch
    mixed[0], mixed[1], mixed[2], mixed[3], mixed[4], mixed[5] = total, computed, delivered, waves, each, multiplied
    np.log2(mixed[:6], out=mixed[:6])
    np.reciprocal(waves, out=mixed[6])
    np.minimum(tiles * of.cluster_share, of.share, out=mixed[10])
    mixed[11] = both
    return total, mixed


def _shared_out(of: TileRates, tiles: Any, waves: Any, each: Any, k_tiles: int) -> tuple[Any, Any, Any]:
    """Return waves, k-tiles of each, and what is added, where stream-K shares out the last waves' k-tiles evenly."""
    at_once = of.clusters
    splits = of.stream_k & (tiles % at_once > 0)
    sharers = np.minimum(at_once, tiles * k_tiles)
    fewer = np.maximum(tiles / at_once, 1)
    every = (tiles * k_tiles + (sharers - 1)) // sharers
    moved = 2 * of.sum_bytes * sharers * of.cluster / _LEFT
    read = of.sum_bytes * np.maximum(sharers / tiles, 1) / _LEFT_TO_ONE
    left = of.stream_k * _ZEROS + splits * np.maximum(moved, read)
    return np.where(splits, fewer, waves), np.where(splits, every / fewer, each), left
