"""Predicted times of the complex GEMMs: the models of the real ones, with four real products for each complex one."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_for_configs
from gemmule.core.problem import GemmProblem
from gemmule.kernels.float64 import limits as float64_limits
from gemmule.kernels.simt.cost import limits
from gemmule.kernels.simt.rates import SimtRates

from .config import Complex64Config, Complex128Config

#: Rates of the fit of complex128, whose elements are never moved by halves; as of float64.
RATES = float64_limits.Float64Rates(
    products=4.927,
    products_of_8=0.9048,
    products_of_4=1.837,
    alone=0.02118,
    wait=0.13,
    l2=6.84e4,
    memory=3.821e6,
    launch=1.305,
    first=1.359,
    write=1.063e5,
    reduction=1.187,
    partials=0.1271,
    tail=0.5536,
    odd_copies=1.0,
    odd_writes=1.0,
    lines=1e-4,
    sectors=1e-4,
)
#: By `float64_limits.key_of`; the first is of warp tiles of 16 x 64.
FACTORS: dict[tuple[int, ...], float] = {
    (64, 64, 8, 8, 1, 4): 0.985,
    (32, 64, 8, 8, 1, 4): 1.014,
    # With stream-K: of nine products (record 20261129T054949, an H200).
    (32, 64, 8, 8, 0, 4): 1.03,
    (32, 32, 16, 16, 1, 4): 0.946,
    (32, 32, 16, 8, 2, 4): 0.985,
    (32, 32, 16, 8, 4, 4): 1.018,
    (64, 64, 8, 4, 1, 4): 1.009,
    # With stream-K: of squares from 1024 to 8192, and 110 products (records 20261129T080521 and 20261129T055156).
    (128, 64, 8, 8, 0, 8): 0.838,
    # By TMA: of 45 products (record 20261201T034458, an H200).
    (128, 64, 8, 16, 0, 8, 1): 0.75,
    (64, 128, 8, 16, 0, 8, 1): 0.74,
    (64, 64, 8, 16, 0, 8, 1): 0.73,
}
#: Microseconds beside for each tile of an SM, which computes nothing else while the tile is written.
WRITTEN_ALONE: dict[tuple[int, ...], float] = {
    (128, 64, 8, 8, 0, 8): 3.0,
    (128, 64, 8, 16, 0, 8, 1): 1.0,
    (64, 128, 8, 16, 0, 8, 1): 1.0,
    (64, 64, 8, 16, 0, 8, 1): 1.0,
}
#: Rates of the fit of complex64, with the factors below: those of float32 at that time.
COMPLEX64_RATES = SimtRates(
    launch=2.348,
    exchange=1.094,
    peer=0.0392,
    cycles=2439.0,
    copy=15.48,
    transposing=15.48,
    read=0.0,
    k_tile=395.7,
    latency=313.7,
    alone=0.7697,
    start=377.5,
    epilogue=45.09,
    memory=3.5e6,
)
#: Measured times of complex64 by predicted ones: by rows, columns, CTAs of a cluster and groups of warps.
COMPLEX64_FACTORS: dict[tuple[int, ...], float] = {
    (128, 128, 1, 1): 1.16,
    (64, 128, 1, 1): 1.24,
    (64, 64, 1, 2): 1.15,
    (64, 64, 1, 1): 1.4,
    (64, 64, 2, 1): 1.34,
    (64, 64, 4, 1): 1.34,
    (32, 32, 1, 1): 1.13,
    (32, 32, 4, 1): 1.05,
    (32, 32, 8, 1): 1.06,
}


@cache_for_configs
def _factors(configs: Sequence[Complex128Config]) -> list[float]:
    return [FACTORS.get(float64_limits.key_of(one), 1.0) for one in configs]


@cache_for_configs
def _written_alone(configs: Sequence[Complex128Config]) -> list[float]:
    return [WRITTEN_ALONE.get(float64_limits.key_of(one), 0.0) for one in configs]


def complex128_costs(problem: GemmProblem, configs: Sequence[Complex128Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of `complex128_gemm`."""
    found = float64_limits.limits(problem, configs, gpu, RATES)
    every = zip(_factors(configs), found.times.tolist(), _written_alone(configs), found.share.tolist(), strict=True)
    return [factor * time + alone * max(tiles, 1.0) for factor, time, alone, tiles in every]


def complex64_costs(problem: GemmProblem, configs: Sequence[Complex64Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of `complex64_gemm`."""
    found: list[float] = limits(problem, configs, gpu).predicted_us(COMPLEX64_RATES).tolist()
    keys = ((one.tile_m, one.tile_n, one.cluster_k, one.warps_k) for one in configs)
    factors = [COMPLEX64_FACTORS.get(key, 1.0) for key in keys]
    return [factor * time for factor, time in zip(factors, found, strict=True)]
