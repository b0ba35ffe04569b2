"""Predicted times of small matrices of a batch by mma.sync."""

from __future__ import annotations

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem

from .config import MMA_K, BatchedMmaConfig

_LAUNCH = 2.5
_MEMORY = 4.0e6


def cost(problem: GemmProblem, config: BatchedMmaConfig, gpu: GpuRates) -> float:
    """Return roughly the time in microseconds."""
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * (problem.batch or (1,))[0]
    steps = -(-problem.k // MMA_K)
    instructions = steps * 6 * 4 * (config.rows + config.columns) + 60 + 10 * config.tile_elements // 32
    issue = tiles * instructions / (4 * gpu.multiprocessors * 1755.0)
    return _LAUNCH * gpu.launch + max(problem.bytes_min / gpu.memory_rate(_MEMORY), issue)
