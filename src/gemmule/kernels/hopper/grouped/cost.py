"""Predicted times of grouped products: of `hopper_gemm`, of the L2 cache, and of CTAs with more work than others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.cost.operation import operation_of
from gemmule.kernels.hopper.cost.pauses import promote_us
from gemmule.kernels.hopper.cost.times import rates_of, times_us
from gemmule.kernels.hopper.tile_config import CONSUMERS, EPI_TILE_M, K_BYTES, MAX_PROMOTED_N
from gemmule.kernels.parts.grouped_tiles import expected_bytes, expected_tiles
from gemmule.kernels.parts.hopper_facts import SMS

from .config import FOR_FLOAT8, GroupedConfig

#: Bytes a microsecond that the L2 cache delivers, and those that it misses, which delay the others; how sharply the
#: longer time wins. Fitted to 62 configs of 8 groups on an H100, and to 4 of 64 groups.
_L2_BYTES, _MISSED_BYTES, _SHARP = 10.7e6, 11.4e6, 8
#: Tiles that the last CTA computes beyond the mean: with dynamic scheduling, of whole and of half tiles, and of whole
#: ones; how much of that shows, and microseconds of a launch for it: without these, of 38 choices that change more
#: lost than won on an H200.
_LAST_DYNAMIC, _LAST_HALVES, _LAST, _LAST_SHARE, _DYNAMIC_US = 0.2, 1.4, 0.7, 0.75, 4.0
#: Addition to the second for each tile: even groups give some CTAs all half tiles, and these run ahead of the others,
#: which then read weights from memory again. 16 groups of 424 rows by 28672 x 4096 took 1.39 times as long.
_HALVES_AHEAD = 0.13
#: Addition to the first of these for no tile at all, and the tiles of a CTA from which it is 0, where B is
#: MN-major: gradients by input of 4 and 8 groups on an H200.
_LAST_FEW, _FEW_TILES = 1.2, 8
#: Factor of 8-bit floats in cooperative tiles that are promoted in halves; 8 and 64 groups on an H200.
_HALVED = 1.12
#: The same as a factor for groups along K, whose tiles differ, of CTAs by themselves and of clusters, and microseconds
#: of a tile in which the counter is read; measured for 8 and 64 groups on an H200.
_UNEQUAL_K, _UNEQUAL_CLUSTERS, _FETCH_US = 1.05, 1.12, 0.37

#: K-tiles of a group along K up to which results are most of the work, and microseconds between two tiles of a CTA
#: then, by whether it is ping-pong: fitted to 16 configs of 64 groups on an H200.
_FEW_K_TILES, _BETWEEN_US = 3, (1.2, 0.5)


def costs(problem: GroupedProblem, configs: Sequence[GroupedConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: those of `hopper_gemm`, or of the L2 cache if these are longer."""
    groups, axis = problem.groups, problem.axis
    k = max(problem.k // groups, 1) if axis == "k" else problem.k
    plain = GemmProblem(problem.m, problem.n * problem.num_b, k, (), problem.a, problem.b, None, problem.d)
    read, written = expected_bytes(problem)
    rates = rates_of(configs, gpu)
    pairs = zip(configs, rates.max_active_clusters.tolist(), strict=True)
    busy, last = np.array([_waves(problem, one, count) for one, count in pairs]).T
    operation = operation_of(plain)._replace(read=int(read), written=written)
    # Between whole waves.
    whole = np.maximum(np.floor(busy), 1)
    fewer, more = (
        times_us(operation._replace(tiles=(waves * rates.max_active_clusters).tolist()), rates)
        for waves in (whole, np.ceil(busy))
    )
    times = fewer + (more - fewer) * (busy - whole).clip(0)
    if problem.a.dtype.is_float8:
        times = times + promote_us(operation._replace(tiles=(busy * rates.max_active_clusters).tolist()), rates)
        times *= [_HALVED if one.tile_n > MAX_PROMOTED_N and not one.pingpong else 1.0 for one in configs]
    else:
        times += [math.inf if one.on(SMS) == FOR_FLOAT8 else 0.0 for one in configs]
    k_tiles = -(-k * problem.a.dtype.itemsize // K_BYTES)
    delivered = np.array([_delivered(problem, one) * k_tiles for one in configs])
    missed = (read + written) / _MISSED_BYTES
    times = (times**_SHARP + (delivered * gpu.l2 / _L2_BYTES + missed) ** _SHARP) ** (1 / _SHARP)
    times *= 1 + _LAST_SHARE * (last / busy - 1)
    if axis == "k" and k_tiles <= _FEW_K_TILES:
        # Each tile has to be written almost as soon as it is begun.
        between = np.array([_BETWEEN_US[one.pingpong] for one in configs])
        times = (read + written) / gpu.memory + busy * between
    # A producer that waits for the counter is behind the consumers where a tile has few k-tiles.
    fetches = np.array([one.dynamic * (_DYNAMIC_US + _FETCH_US * count * (k_tiles < one.stages))
                        for one, count in zip(configs, busy, strict=True)])  # fmt: skip
    found: list[float] = (times + fetches).tolist()
    return found


def _delivered(problem: GroupedProblem, config: GroupedConfig) -> float:
    """Return the bytes that the L2 cache delivers for one k-tile of every tile."""
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    lines = config.tile_m / config.cluster_n + config.tile_n / config.cluster_m
    return expected_tiles(problem, rows, cols) * config.cluster_size * K_BYTES * lines


def _waves(problem: GroupedProblem, config: GroupedConfig, clusters: int) -> tuple[float, float]:
    """Return how many tiles a CTA computes on average, and the last one to end.

    Where two warpgroups share a tile, one of at most 64 rows counts half: a CTA that gets many of them by its number is
    done before the others, one that takes tiles by the counter takes more.
    """
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    tiles: float = expected_tiles(problem, rows, cols)
    if problem.axis == "k":
        whole = -(-tiles // clusters)
        unequal = _UNEQUAL_CLUSTERS if config.cluster_size > 1 else _UNEQUAL_K
        return whole, whole if config.dynamic else whole * unequal
    halves = problem.axis == "m" and not config.pingpong and rows == CONSUMERS * EPI_TILE_M
    if halves:
        tiles = expected_tiles(problem, EPI_TILE_M, cols) / CONSUMERS
    if tiles <= clusters:
        return 1, 1
    busy = tiles / clusters
    few = 0 if problem.b.has_contiguous_cols else max(1 - busy / _FEW_TILES, 0)
    dynamic = _LAST_DYNAMIC + _LAST_FEW * few
    in_order = _LAST_HALVES + _HALVES_AHEAD * busy if halves else _LAST
    return busy, busy + (dynamic if config.dynamic else in_order)
