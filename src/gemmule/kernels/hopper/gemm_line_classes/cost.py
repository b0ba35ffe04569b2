"""Predicted times of products of an operand in classes of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemmule.core.gpu_rates import GpuRates
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


def times(problem: GemmProblem, configs: Sequence[LineClassConfig], gpu: GpuRates, rates: Rates = RATES) -> list[float]:
    """Return roughly the times of an oriented product, of B in classes of lines, in microseconds."""
    m, n, k = problem.m, problem.n, problem.k
    k_major, power, found = problem.b.has_contiguous_cols, rates.power, []
    # With K-major B a tile has lines of one class, else a k-tile.
    depth = k + CLASSES // 2 if k_major else -(-k // CLASSES)
    per_class, lines = -(-depth // TILE_K), -(-n // CLASSES)
    memory = gpu.moved_us((m + n) * k * _ITEM, rates.memory)
    scattered = m * n / rates.scattered if k_major and problem.d.is_row_major else 0.0
    least = memory**power + (gpu.l2 * scattered) ** power
    for one in configs:
        if k_major:
            tiles, k_tiles = CLASSES * -(-lines // one.tile_n), -(-per_class // one.cluster_k)
            moves = 0.0
        else:
            tiles, k_tiles = -(-n // (one.tile_n - CLASSES)), -(-per_class * CLASSES // one.cluster_k)
            moves = CLASSES / one.cluster_k + 1
        clusters = tiles * -(-m // (one.tile_m * one.cluster_m))
        at_once = max(clusters_at_once(one.cluster_size, 1) * gpu.multiprocessors // SMS, 1)
        rows = min(one.tile_m, m)
        filled = (rows + one.tile_n) * TILE_K * _ITEM
        fill, multiply = gpu.load * filled / rates.fill, gpu.multiply * rates.multiply * one.tile_elements / 2**14
        k_tile = ((gpu.load * rates.latency / one.stages) ** power + fill**power + multiply**power) ** (1 / power)
        end = moves * rates.move * one.tile_n / 100 + rates.write * one.columns * one.tile_m / 12800
        if one.cluster_k > 1:
            end += rates.cluster + rates.exchange * one.tile_elements / 4096 * (1 - 1 / one.cluster_k)
        if problem.c is not None:
            end += rates.addend * one.tile_elements / 8192 / one.cluster_k
        body = -(-clusters // at_once) * (k_tiles * k_tile + gpu.load * end)
        read = clusters * one.cluster_size * k_tiles * TILE_K * _ITEM * (rows + one.tile_n / one.cluster_m)
        l2 = gpu.l2 * read / rates.l2
        factor = _UNTIMED if (one.tile_m == MMA_M) != (m <= MMA_M) else 1.0
        found.append(factor * (gpu.launch * rates.launch + (body**power + l2**power + least) ** (1 / power)))
    return found
