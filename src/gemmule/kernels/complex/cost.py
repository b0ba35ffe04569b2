"""Predicted times of the complex GEMMs: the models of the real ones, with four real products for each complex one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.kernels.float64 import cost as float64_cost
from gemmule.kernels.simt import cost as simt_cost

from .config import Complex64Config, Complex128Config

#: Rates of complex128, whose elements are never moved by halves, and factors of its configs.
RATES = dataclasses.replace(
    float64_cost.RATES, products=4 * float64_cost.RATES.products, odd_copies=1.0, odd_writes=1.0
)
FACTORS: dict[tuple[int, ...], float] = {}
_times = functools.cache(functools.partial(float64_cost.times_of, rates=RATES))


def complex128_costs(problem: GemmProblem, configs: Sequence[Complex128Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of `complex128_gemm`."""
    found = float64_cost.limits(problem, configs, gpu, RATES, _times)
    return [FACTORS.get(float64_cost.key_of(one), 1.0) * time for one, time in zip(configs, found, strict=True)]


def complex64_costs(problem: GemmProblem, configs: Sequence[Complex64Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of `complex64_gemm`."""
    found: list[float] = simt_cost.limits(problem, configs, gpu).predicted_us(simt_cost.RATES).tolist()
    return found
