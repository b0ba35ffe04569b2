"""What a product in double precision takes on tensor cores, predicted for many configs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Protocol

from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result

_ITEM = 8
#: Fitted to times of all configs on an H200, in microseconds: products of a slice of 128 x 128 x 16, and how much more
#: smaller instructions take; what a slice waits for by itself, and in a CTA alone, if a scheduler has one warp; bytes
#: that a multiprocessor takes from L2, and all move to and from device memory.
_PRODUCTS, _SMALLER, _ALONE, _WAIT, _L2, _DRAM = 1.31, {16: 1.0, 8: 1.04, 4: 1.83}, 0.022, 0.135, 85.5e3, 3.79e6
#: A launch; the first slices of as many CTAs as a multiprocessor holds; bytes that it writes; a cluster's exchange, and
#: that of 64 x 64 sums; and how long the last CTAs run alone.
_LAUNCH, _FIRST, _WRITE, _EXCHANGE, _SUMS, _TAIL = 1.35, 1.11, 119e3, 1.0, 0.126, 0.458
#: Share of the multiprocessors that clusters reach, and of their time that they use where many wait for their turn.
_REACHED, _USED = {1: 1.0, 2: 1.0, 4: 0.88}, {1: 1.0, 2: 0.943, 4: 1.0}


class DoubleConfig(Protocol):
    """What the prediction reads of a config, as `MmaDoubleConfig` describes it."""

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def tile_k(self) -> int: ...
    @property
    def mma_k(self) -> int: ...
    @property
    def cluster_k(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def resident(self) -> int: ...
    def __hash__(self) -> int: ...


@functools.cache
def _rates(config: DoubleConfig) -> tuple[float, float, float, float, float, int]:
    """Return what only a config decides: products, copies, a slice alone, results, sums; and CTAs side by side."""
    products = _PRODUCTS * _SMALLER[config.mma_k] * config.outputs * config.tile_k / 2**18
    copies = (config.tile_m + config.tile_n) * config.tile_k * _ITEM / _L2
    # More sums a thread, and deeper fragments, are more to read before products can begin.
    first = math.sqrt(config.outputs / config.threads / 32) * max(config.mma_k, 8) / 16
    alone = products + _WAIT * 128 / config.threads * first + _ALONE
    written = config.outputs * _ITEM / config.cluster_k / _WRITE
    sums = _EXCHANGE + _SUMS * config.outputs / 2**12 if config.cluster_k > 1 else 0.0
    return products, copies, alone, written, sums, config.resident


def costs(problem: GemmProblem, configs: Sequence[DoubleConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds: the slices of a multiprocessor's CTAs, side by side and in turn."""
    oriented, _, _ = row_result(problem)
    m, n, k, batch = oriented.m, oriented.n, oriented.k, (oriented.batch or (1,))[0]
    memory = (((m + n) * k + m * n) * batch * _ITEM / _DRAM) ** 4
    found = []
    for config in configs:
        products, copies, alone, written, sums, resident = _rates(config)
        shared = config.cluster_k
        ctas = -(-n // config.tile_n) * -(-m // config.tile_m) * batch * shared
        reached = multiprocessors * _REACHED.get(shared, 0.5)
        each = math.ceil(ctas / reached)
        slices = -(-k // (config.tile_k * shared))
        if each <= resident:
            time = slices * max(each * products, each * copies, alone)
        elif resident == 1:
            time = slices * each * max(alone, copies)
        else:
            time = slices * (
                ctas / reached / _USED.get(shared, 1.0) * max(products, copies, alone / resident) + _TAIL * alone
            )
        time = math.sqrt(math.sqrt(time**4 + memory))
        found.append(_LAUNCH + _FIRST * math.ceil(each / resident) + time + sums + each * written)
    return found


def cost(problem: GemmProblem, config: DoubleConfig, multiprocessors: int) -> float:
    """Return roughly the time of a config in microseconds."""
    return costs(problem, (config,), multiprocessors)[0]
