"""Predicted times of the float32 GEMMs."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.dtype import FLOAT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.parts.batched_launch import tile_grid

from .config import CpAsyncConfig, SimtConfig

#: For tiles of so many elements, on an H200: nanoseconds for one more k of each tile of a multiprocessor, the least for
#: one tile alone, and the k that prologue and epilogue are worth.
_TIMES = {128 * 256: (180.0, 180.0, 97), 128 * 128: (100.0, 100.0, 78), 64 * 64: (36.3, 75.0, 34)}


def cost_of(ctas: int, k: int, config: CpAsyncConfig, gpu: GpuRates) -> float:
    """Return roughly the time in nanoseconds of so many CTAs, of a tile with `k` products each."""
    each, alone, ends = _TIMES.get(config.outputs, (config.outputs / 160, config.outputs / 160, 97))
    tiles = -(-ctas // gpu.multiprocessors)
    return max(each * tiles, alone) * (k + ends)


#: Of the GEMM in all layouts, from the FMA units' rate, not fitted yet: microseconds of a launch and of the first
#: k-tiles, of a k of a tile of 128 x 128 for an SM, of a k for a CTA alone, and of a cluster's exchange.
_LAUNCH, _FIRST, _K, _ALONE, _EXCHANGE = 1.4, 1.0, 0.085, 0.04, 1.2
#: Bytes a microsecond to and from memory.
_MEMORY = 3.8e6


def costs(problem: GemmProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds of `simt_gemm`: the k of a multiprocessor's CTAs, beside memory."""
    oriented, _, _ = row_result(problem)
    m, n, k, batch = oriented.m, oriented.n, oriented.k, (oriented.batch or (1,))[0]
    memory = gpu.moved_us(((m + n) * k + m * n) * batch * FLOAT32.itemsize, _MEMORY)
    found = []
    for config in configs:
        ctas = tile_grid(oriented, config.tile_m, config.tile_n, config.cluster_k)[0]
        each = -(-ctas // gpu.multiprocessors)
        # A k's vectors cost issue slots beside its FMAs.
        reads = (config.thread_m + config.thread_n) / (2 * config.thread_m * config.thread_n)
        of_k = _K * config.outputs / 2**14 * (0.875 + reads)
        depth = -(-k // (config.tile_k * config.cluster_k)) * config.tile_k
        waves = -(-each // config.resident)
        time = max(each * of_k, waves * _ALONE) * depth + waves * _FIRST
        time += _EXCHANGE * (config.cluster_k > 1)
        found.append(_LAUNCH + max(time, memory))
    return found
