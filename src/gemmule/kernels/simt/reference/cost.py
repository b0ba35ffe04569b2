"""Predicted times of the GEMM that takes every problem."""

from __future__ import annotations

import math

from gemmule.core.dtype import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, INT32
from gemmule.core.epilogue_inputs import num_b_of
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem

from .config import ReferenceConfig

#: Microseconds of a k-tile of a CTA that is alone in its SM, and of one among others, by accumulator, on an H200:
#: of the row-major products of record 20261129T141723; those of complex128 are assumed.
_K_TILE_US = {
    FLOAT32: (3.9, 1.16), INT32: (3.9, 1.16), FLOAT64: (4.4, 1.39), COMPLEX64: (5.7, 2.37), COMPLEX128: (7.0, 2.8),
}  # fmt: skip
#: Microseconds of a launch, a CTA's start and its epilogue; CTAs of an SM; bytes to and from memory in a microsecond,
#: and elements that are written in one, with C (record 20261130T005355).
_LAUNCH_US, _RESIDENT, _BYTES, _WRITTEN = 4.0, 4, 2.7e6, 3.2e5


def cost(problem: GemmProblem, config: ReferenceConfig, gpu: GpuRates) -> float:
    """Return roughly the time in microseconds: of full waves of CTAs and the last one, or of memory."""
    alone, among = _K_TILE_US[problem.accumulator]
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * math.prod(problem.batch)
    waves, rest = divmod(-(-tiles // gpu.multiprocessors), _RESIDENT)
    k_tile_us = waves * max(alone, _RESIDENT * among) + (max(alone, rest * among) if rest else 0.0)
    k_tiles = -(-problem.k // config.tile_k) * (1 + num_b_of(problem.epilogue)) / 2
    moved = gpu.moved_us(problem.bytes_min, _BYTES)
    if problem.c is not None:
        moved = max(moved, gpu.load * problem.m * problem.n * math.prod(problem.batch) / _WRITTEN)
    return _LAUNCH_US * gpu.launch + max(k_tiles * k_tile_us * gpu.load, moved)
