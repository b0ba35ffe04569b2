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
    (64, 64, 16, 16, 1, 4): 1.004,
    (64, 64, 16, 8, 1, 4): 1.034,
    (64, 128, 16, 8, 1, 8): 1.039,
    (128, 128, 16, 16, 1, 8): 1.131,
    (128, 128, 16, 8, 1, 8): 1.2,
    (64, 64, 16, 8, 2, 4): 1.062,
    (64, 32, 16, 16, 2, 4): 0.942,
    (32, 64, 16, 8, 1, 4): 0.903,
    (32, 64, 16, 8, 2, 4): 0.958,
    (32, 32, 32, 16, 2, 4): 0.952,
    (32, 32, 32, 16, 1, 4): 0.857,
    (16, 64, 32, 16, 2, 4): 0.927,
    (16, 64, 32, 16, 4, 2): 0.876,
    (64, 64, 16, 8, 4, 4): 1.021,
    (32, 64, 16, 8, 4, 4): 0.932,
    (64, 64, 16, 8, 6, 4): 1.220,
    (64, 64, 16, 8, 8, 4): 1.147,
    (32, 64, 16, 8, 6, 4): 1.046,
    (32, 64, 16, 8, 8, 4): 1.022,
    (32, 32, 32, 16, 4, 4): 0.920,
    (32, 32, 32, 16, 6, 4): 0.966,
    (32, 64, 32, 8, 2, 4): 0.953,
    (32, 64, 32, 8, 4, 4): 0.986,
    (64, 64, 16, 16, 1, 8): 1.064,
    (64, 64, 16, 16, 2, 8): 1.03,
    (96, 64, 16, 8, 1, 4): 1.15,
    (96, 64, 16, 8, 2, 4): 1.151,
    (64, 96, 16, 8, 1, 4): 1.15,
    (64, 112, 16, 8, 1, 4): 1.05,
    (64, 64, 16, 4, 1, 4): 1.013,
    (128, 128, 16, 4, 1, 8): 1.035,
    (64, 64, 16, 8, 1, 8): 0.999,
    (64, 64, 16, 16, 0, 8): 1.208,
    (64, 64, 16, 16, 0, 4): 1.164,
    (64, 128, 16, 8, 0, 8): 1.152,
    (128, 64, 16, 8, 0, 8): 1.09,
    (96, 64, 16, 8, 0, 4): 1.14,
    (64, 96, 16, 8, 0, 4): 1.131,
    (64, 112, 16, 8, 0, 4): 1.11,
    (128, 128, 16, 16, 0, 8): 0.987,
    (64, 64, 32, 8, 2, 8): 1.008,
    (128, 128, 32, 8, 0, 8): 0.863,
    (128, 128, 16, 8, 0, 8): 0.916,
    (32, 64, 32, 8, 1, 4): 1.086,
    (64, 32, 32, 8, 1, 4): 1.108,
    (32, 64, 32, 8, 0, 4): 1.083,
    (32, 64, 16, 8, 0, 4): 1.018,
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
