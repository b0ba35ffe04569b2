"""Cost model of the float64 GEMM on tensor cores, for many configs at once: limits, and what measured times add."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem

from .config import Float64Config
from .correction import correction, measured_share
from .limits import RATES, Numbers, key_of, limits

#: Measured times by those of the limits, by rows, columns and depth of a tile, elements of K of an instruction, CTAs
#: of a cluster (0 with stream-K), and warps: of products that the correction was not fitted to. Of 128 x 128 and 8 by
#: one CTA it is assumed.
FACTORS: dict[tuple[int, ...], float] = {
    (64, 64, 16, 16, 1, 4): 1.03,
    (64, 64, 16, 8, 1, 4): 1.02,
    (64, 128, 16, 8, 1, 8): 0.975,
    (128, 128, 16, 16, 1, 8): 1.131,
    (128, 128, 16, 8, 1, 8): 1.2,
    (64, 64, 16, 8, 2, 4): 1.059,
    (64, 32, 16, 16, 2, 4): 0.942,
    (32, 64, 16, 8, 1, 4): 0.9,
    (32, 64, 16, 8, 2, 4): 0.958,
    (32, 32, 32, 16, 2, 4): 0.952,
    (32, 32, 32, 16, 1, 4): 0.896,
    (16, 64, 32, 16, 2, 4): 0.927,
    (16, 64, 32, 16, 4, 2): 0.876,
    (64, 64, 16, 8, 4, 4): 1.021,
    (32, 64, 16, 8, 4, 4): 0.893,
    (64, 64, 16, 8, 6, 4): 1.220,
    (64, 64, 16, 8, 8, 4): 1.147,
    (32, 64, 16, 8, 6, 4): 1.045,
    (32, 64, 16, 8, 8, 4): 1.022,
    (32, 32, 32, 16, 4, 4): 0.920,
    (32, 32, 32, 16, 6, 4): 0.966,
    (32, 64, 32, 8, 2, 4): 0.944,
    (32, 64, 32, 8, 4, 4): 0.986,
    (64, 64, 16, 16, 1, 8): 1.045,
    (64, 64, 16, 16, 2, 8): 1.003,
    (96, 64, 16, 8, 1, 4): 1.15,
    (96, 64, 16, 8, 2, 4): 1.151,
    (64, 96, 16, 8, 1, 4): 1.15,
    (64, 112, 16, 8, 1, 4): 1.05,
    (64, 64, 16, 4, 1, 4): 1.013,
    (128, 128, 16, 4, 1, 8): 1.035,
    (64, 64, 16, 8, 1, 8): 1.0,
    (64, 64, 16, 16, 0, 8): 1.17,
    (64, 64, 16, 16, 0, 4): 1.141,
    (64, 128, 16, 8, 0, 8): 1.15,
    (128, 64, 16, 8, 0, 8): 1.125,
    (96, 64, 16, 8, 0, 4): 1.14,
    (64, 96, 16, 8, 0, 4): 1.12,
    (64, 112, 16, 8, 0, 4): 1.11,
    (128, 128, 16, 16, 0, 8): 0.99,
    (64, 64, 32, 8, 2, 8): 0.977,
    (128, 128, 32, 8, 0, 8): 0.97,
    (128, 128, 16, 8, 0, 8): 0.95,
    (32, 64, 32, 8, 1, 4): 1.086,
    (64, 32, 32, 8, 1, 4): 1.108,
    (32, 64, 32, 8, 0, 4): 1.083,
    (32, 64, 16, 8, 0, 4): 1.052,
}


@cache_for_configs
def _factors(configs: Sequence[Float64Config]) -> Numbers:
    return np.array([FACTORS.get(key_of(one), 1.0) for one in configs])


def costs(problem: GemmProblem, configs: Sequence[Float64Config], gpu: GpuRates) -> Numbers:
    """Return roughly the times in microseconds: those of the limits, and what measured times add to them."""
    found = limits(problem, configs, gpu, RATES)
    factors, share = _factors(configs), measured_share(problem)
    if share > 0:
        learned = correction(problem, configs, found, gpu)
        factors = learned if share == 1 else factors ** (1 - share) * learned**share
    times: Numbers = found.times * factors
    return times
