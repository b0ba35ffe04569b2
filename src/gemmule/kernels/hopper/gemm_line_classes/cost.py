"""Predicted times of products of an operand in classes of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.tile_config import MMA_M
from gemmule.kernels.parts.clusters_at_once import clusters_at_once
from gemmule.kernels.parts.hopper_facts import SMS

from .config import CLASSES, TILE_K, LineClassConfig

_ITEM = 2
#: Factor on the times of tiles of 64 rows for more, and of others for fewer, which nobody timed.
_UNTIMED = 2.0


class Rates(NamedTuple):
    """Times in microseconds on an H200, and rates in bytes a microsecond, fitted to record 20261130T173011."""

    launch: float = 1.65  #: A launch, and the first loads.
    latency: float = 1.44  #: From the load of a stage to the next one of the same stage.
    fill: float = 0.455e6  #: Bytes that an SM's stages are filled with.
    multiply: float = 0.113  #: 128 x 128 of a k-tile.
    move: float = 0.422  #: Moving 100 columns of accumulators.
    exchange: float = 0.631  #: Exchanging 64 x 64 partial sums.
    cluster: float = 3.39  #: Cluster that shares K.
    write: float = 2.19  #: Writing 128 rows of 100 columns.
    l2: float = 9.9e6  #: Bytes from L2.
    memory: float = 3.36e6  #: Bytes from memory.
    scattered: float = 0.0857e6  #: Elements of D that are written one by one.
    addend: float = 8.0  #: Reading 128 x 64 of C, of 11 products (interleaved, not recorded).
    power: float = 1.8  #: By which what limits at the same time is added.


RATES = Rates()


class _Tile(NamedTuple):
    """What a config's time has of numbers for every product of operands that lie in one way; times in microseconds."""

    rows: int  #: Rows of a cluster's tiles.
    cols: int  #: Columns of a tile that are written.
    tile_m: int
    tile_n: int
    cluster_k: int
    at_once: int  #: Clusters that are resident at once.
    latency: float
    multiply: float
    k_tile: float  #: Of as many rows as the tile has.
    end: float  #: The end of a tile.
    read: int  #: Bytes of K that a cluster reads of each row and column, for a k-tile of each CTA.
    shared_cols: float  #: Columns that a CTA reads itself.


@cache_for_configs
def _tiles(
    configs: Sequence[LineClassConfig], gpu: GpuRates, rates: Rates, k_major: bool, reads_c: bool
) -> list[_Tile]:
    return [_tile(one, gpu, rates, k_major, reads_c) for one in configs]


def _tile(one: LineClassConfig, gpu: GpuRates, rates: Rates, k_major: bool, reads_c: bool) -> _Tile:
    moves = 0.0 if k_major else CLASSES / one.cluster_k + 1
    end = moves * rates.move * one.tile_n / 100 + rates.write * one.columns * one.tile_m / 12800
    if one.cluster_k > 1:
        end += rates.cluster + rates.exchange * one.tile_elements / 4096 * (1 - 1 / one.cluster_k)
    if reads_c:
        end += rates.addend * one.tile_elements / 8192 / one.cluster_k
    latency = (gpu.load * rates.latency / one.stages) ** rates.power
    multiply = (gpu.multiply * rates.multiply * one.tile_elements / 2**14) ** rates.power
    return _Tile(
        rows=one.tile_m * one.cluster_m,
        cols=one.tile_n if k_major else one.tile_n - CLASSES,
        tile_m=one.tile_m,
        tile_n=one.tile_n,
        cluster_k=one.cluster_k,
        at_once=max(clusters_at_once(one.cluster_size, 1) * gpu.multiprocessors // SMS, 1),
        latency=latency,
        multiply=multiply,
        k_tile=_k_tile(one.tile_m + one.tile_n, latency, multiply, gpu, rates),
        end=gpu.load * end,
        read=one.cluster_size * TILE_K * _ITEM,
        shared_cols=one.tile_n / one.cluster_m,
    )


def _k_tile(lines: int, latency: float, multiply: float, gpu: GpuRates, rates: Rates) -> float:
    """Return the time of a k-tile of so many rows and columns."""
    filled: float = gpu.load * (lines * TILE_K * _ITEM) / rates.fill
    found: float = (latency + filled**rates.power + multiply) ** (1 / rates.power)
    return found


def times(problem: GemmProblem, configs: Sequence[LineClassConfig], gpu: GpuRates, rates: Rates = RATES) -> list[float]:
    """Return roughly the times of an oriented product, of B in classes of lines, in microseconds."""
    m, n, k = problem.m, problem.n, problem.k
    k_major, power, found = problem.b.has_contiguous_cols, rates.power, []
    # With K-major B a tile has lines of one class, else a k-tile.
    depth = k + CLASSES // 2 if k_major else -(-k // CLASSES)
    per_class = -(-depth // TILE_K)
    memory = gpu.moved_us((m + n) * k * _ITEM, rates.memory)
    scattered = m * n / rates.scattered if k_major and problem.d.is_row_major else 0.0
    least = memory**power + (gpu.l2 * scattered) ** power
    lines, classes, k_tiles = (-(-n // CLASSES), CLASSES, per_class) if k_major else (n, 1, per_class * CLASSES)
    launched, inverse = gpu.launch * rates.launch, 1 / power
    for one in _tiles(configs, gpu, rates, k_major, problem.c is not None):
        tile_m = one.tile_m
        clusters, parts = classes * -(-lines // one.cols) * -(-m // one.rows), -(-k_tiles // one.cluster_k)
        if m < tile_m:
            rows, k_tile = m, _k_tile(m + one.tile_n, one.latency, one.multiply, gpu, rates)
        else:
            rows, k_tile = tile_m, one.k_tile
        body = -(-clusters // one.at_once) * (parts * k_tile + one.end)
        l2 = gpu.l2 * (clusters * parts * one.read * (rows + one.shared_cols)) / rates.l2
        factor = _UNTIMED if (tile_m == MMA_M) != (m <= MMA_M) else 1.0
        found.append(factor * (launched + (body**power + l2**power + least) ** inverse))
    return found
