"""Cost model of the float64 GEMM on tensor cores, for many configs at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result

from .config import Float64Config

_ITEM = 8
#: Fitted to times of all configs on an H200, in microseconds: products of a k-tile of 128 x 128 x 16, and the factor of
#: smaller instructions; the latency of a k-tile, and that of a CTA alone, if a scheduler has one warp; bytes that a
#: multiprocessor loads from L2, and that all move to and from device memory.
_PRODUCTS, _SMALLER, _ALONE, _WAIT, _L2, _DRAM = 1.31, {16: 1.0, 8: 1.04, 4: 1.83}, 0.022, 0.135, 85.5e3, 3.79e6
#: A launch; the first k-tiles of as many CTAs as a multiprocessor holds; bytes that it writes; a cluster's reduction,
#: and that of 64 x 64 partial sums; and how long the last CTAs run alone.
_LAUNCH, _FIRST, _WRITE, _REDUCTION, _PARTIALS, _TAIL = 1.35, 1.11, 119e3, 1.0, 0.126, 0.458
#: Share of the multiprocessors that clusters reach, and of their time that they use where many wait.
_REACHED, _USED = {1: 1.0, 2: 1.0, 4: 0.88}, {1: 1.0, 2: 0.943, 4: 1.0}


@functools.cache
def _rates(config: Float64Config) -> tuple[float, float, float, float, float, int]:
    """Return a config's rates: products, copies, a k-tile alone, results, reduction; and resident CTAs."""
    products = _PRODUCTS * _SMALLER[config.mma_k] * config.outputs * config.tile_k / 2**18
    copies = (config.tile_m + config.tile_n) * config.tile_k * _ITEM / _L2
    # More accumulators a thread, and deeper fragments, are more to read before products can begin.
    first = math.sqrt(config.outputs / config.threads / 32) * max(config.mma_k, 8) / 16
    alone = products + _WAIT * 128 / config.threads * first + _ALONE
    written = config.outputs * _ITEM / config.cluster_k / _WRITE
    reduction = _REDUCTION + _PARTIALS * config.outputs / 2**12 if config.cluster_k > 1 else 0.0
    return products, copies, alone, written, reduction, config.resident


def costs(problem: GemmProblem, configs: Sequence[Float64Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: the k-tiles of a multiprocessor's CTAs, concurrent or not."""
    oriented, _, _ = row_result(problem)
    m, n, k, batch = oriented.m, oriented.n, oriented.k, (oriented.batch or (1,))[0]
    memory = (((m + n) * k + m * n) * batch * _ITEM / gpu.memory_rate(_DRAM)) ** 4
    found = []
    for config in configs:
        products, copies, alone, written, reduction, resident = _rates(config)
        shared = config.cluster_k
        ctas = -(-n // config.tile_n) * -(-m // config.tile_m) * batch * shared
        reached = gpu.multiprocessors * _REACHED.get(shared, 0.5)
        each = math.ceil(ctas / reached)
        k_tiles = -(-k // (config.tile_k * shared))
        if each <= resident:
            time = k_tiles * max(each * products, each * copies, alone)
        elif resident == 1:
            time = k_tiles * each * max(alone, copies)
        else:
            time = k_tiles * (
                ctas / reached / _USED.get(shared, 1.0) * max(products, copies, alone / resident) + _TAIL * alone
            )
        # Other CTAs' copies go on while one begins or writes.
        time += _FIRST * math.ceil(each / resident) + each * written
        found.append(_LAUNCH + math.sqrt(math.sqrt(time**4 + memory)) + reduction)
    return found
