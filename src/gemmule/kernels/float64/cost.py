"""Cost model of the float64 GEMM on tensor cores, for many configs at once: limits, and what measured times add."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result

from .config import Float64Config
from .correction import correction, measured_share
from .limits import RATES, Numbers, key_of, layout_of, limits

#: Measured times by those of the limits, by rows, columns and depth of a tile, elements of K of an instruction, CTAs
#: of a cluster (0 with stream-K), and warps: of products that the correction was not fitted to. Of 128 x 128 and 8 by
#: one CTA it is assumed; of 80 x 64, and 64 x 32 and 8, it is a little more than the median of 20261129T142017.
FACTORS: dict[tuple[int, ...], float] = {
    (64, 64, 16, 16, 1, 4): 0.934,
    (64, 64, 16, 8, 1, 4): 0.99,
    (64, 128, 16, 8, 1, 8): 0.98,
    (128, 128, 16, 16, 1, 8): 1.124,
    (128, 128, 16, 8, 1, 8): 1.161,
    (64, 64, 16, 8, 2, 4): 1.068,
    (64, 32, 16, 16, 2, 4): 0.9,
    (32, 64, 16, 8, 1, 4): 0.869,
    (32, 64, 16, 8, 2, 4): 0.865,
    (32, 32, 32, 16, 2, 4): 0.949,
    (32, 32, 32, 16, 1, 4): 0.856,
    (16, 64, 32, 16, 2, 4): 0.859,
    (16, 64, 32, 16, 4, 2): 0.854,
    (64, 64, 16, 8, 4, 4): 1.018,
    (32, 64, 16, 8, 4, 4): 0.951,
    (64, 64, 16, 8, 6, 4): 1.220,
    (64, 64, 16, 8, 8, 4): 1.147,
    (32, 64, 16, 8, 6, 4): 0.986,
    (32, 64, 16, 8, 8, 4): 1.012,
    (32, 32, 32, 16, 4, 4): 0.92,
    (32, 32, 32, 16, 6, 4): 0.966,
    (32, 64, 32, 8, 2, 4): 0.925,
    (32, 64, 32, 8, 4, 4): 0.991,
    (64, 64, 16, 16, 1, 8): 1.019,
    (64, 64, 16, 16, 2, 8): 0.989,
    (96, 64, 16, 8, 1, 4): 1.109,
    (96, 64, 16, 8, 2, 4): 1.151,
    (64, 96, 16, 8, 1, 4): 1.045,
    (64, 112, 16, 8, 1, 4): 0.999,
    (64, 64, 16, 4, 1, 4): 1.011,
    (128, 128, 16, 4, 1, 8): 1.035,
    (64, 64, 16, 8, 1, 8): 0.964,
    (64, 64, 16, 16, 0, 8): 1.063,
    (64, 64, 16, 16, 0, 4): 1.07,
    (64, 128, 16, 8, 0, 8): 1.031,
    (128, 64, 16, 8, 0, 8): 1.037,
    (96, 64, 16, 8, 0, 4): 1.14,
    (64, 96, 16, 8, 0, 4): 1.111,
    (64, 112, 16, 8, 0, 4): 1.093,
    (128, 128, 16, 16, 0, 8): 0.9,
    (64, 64, 32, 8, 2, 8): 0.966,
    (128, 128, 32, 8, 0, 8): 0.839,
    (128, 128, 16, 8, 0, 8): 0.848,
    (32, 64, 32, 8, 1, 4): 1.086,
    (64, 32, 32, 8, 1, 4): 1.108,
    (32, 64, 32, 8, 0, 4): 0.91,
    (32, 64, 16, 8, 3, 4): 0.98,
    (32, 64, 32, 8, 8, 4): 1.007,
    (32, 64, 16, 8, 0, 4): 0.899,
    (128, 128, 16, 16, 0, 8, 1): 0.82,
    (80, 64, 16, 8, 1, 4): 1.07,
    (64, 32, 16, 8, 1, 4): 0.97,
}
#: Share added for each doubling of a product's operations beyond so many, at most so many times these.
_SLOWER, _FROM, _MOST = 0.012, 2**30, 2**10
#: Share added for products in tiles of fewer elements than so many, for each doubling of their operations beyond
#: so many, where B is MN-major and where it is K-major, and the most: of 30 products of H200s, of 2**37 to 2**40.5
#: operations.
_LARGE_TILE, _LONGER, _LONGER_FROM, _LONGEST = 128 * 128, 0.027, (2**38.5, 2**37), 0.1

#: Further factors of matrices in a batch, of up to so many multiply-adds each: 512 and 1017 of 128 x 128 x 128 on an
#: H200 (records 20261129T210729 and 20261129T210738).
_BATCHED: dict[tuple[int, ...], float] = {
    (64, 128, 16, 8, 1, 8): 0.945,
    (128, 128, 32, 8, 0, 8): 1.05,
    (32, 64, 16, 8, 0, 4): 1.06,
    # Not measured.
    (128, 128, 16, 16, 0, 8, 1): 1.1,
}
_FEW = 128**3
#: Factors of configs by TMA besides the learned correction, which was fitted to others; the second where both operands
#: are K-major: of 110 products of an H200.
_BY_TMA = (0.94, 0.91)


@cache_for_configs
def _factors(configs: Sequence[Float64Config]) -> Numbers:
    return np.array([FACTORS.get(key_of(one), 1.0) for one in configs])


@cache_for_configs
def _batched_factors(configs: Sequence[Float64Config]) -> Numbers:
    return np.array([_BATCHED.get(key_of(one), 1.0) for one in configs])


@cache_for_configs
def _by_tma(configs: Sequence[Float64Config]) -> Numbers:
    return np.array([one.tma == 1 for one in configs])


@cache_for_configs
def _large_tiles(configs: Sequence[Float64Config]) -> Numbers:
    return np.array([one.tile_elements >= _LARGE_TILE for one in configs])


def power(problem: GemmProblem, configs: Sequence[Float64Config]) -> float | Numbers:
    """Return how much longer a product takes since the power that it needs lowers the clock, in each config or in all.

    It does so most for large products in small tiles.
    """
    operations = 2 * problem.m * problem.n * problem.k * max((problem.batch or (1,))[0], 1)
    every = 1 + _SLOWER * math.log2(min(max(operations / _FROM, 1.0), _MOST))
    if 2 * problem.m * problem.n * problem.k <= min(_LONGER_FROM):
        return every
    of_large: Numbers = np.where(_large_tiles(configs), every, every * (1 + _longer(problem)))
    return of_large


def costs(problem: GemmProblem, configs: Sequence[Float64Config], gpu: GpuRates) -> Numbers:
    """Return roughly the times in microseconds: those of the limits, and what measured times add to them."""
    found = limits(problem, configs, gpu, RATES)
    layout = layout_of(row_result(problem)[0])
    factors, share = _factors(configs), measured_share(problem)
    if share > 0:
        by_tma = np.where(_by_tma(configs), _BY_TMA[layout.along_a and layout.along_b], 1.0)
        learned = correction(problem, configs, found, gpu) * by_tma
        factors = learned if share == 1 else factors ** (1 - share) * learned**share
    times: Numbers = found.times * factors
    times *= power(problem, configs)
    if problem.batch and problem.m * problem.n * problem.k <= _FEW:
        times *= _batched_factors(configs)
    return times


def _longer(problem: GemmProblem) -> float:
    """Return how much longer a product takes in tiles that are not large."""
    oriented, _, _ = row_result(problem)
    beyond = 2 * problem.m * problem.n * problem.k / _LONGER_FROM[oriented.b.is_col_major]
    return min(_LONGER * math.log2(max(beyond, 1.0)), _LONGEST)
