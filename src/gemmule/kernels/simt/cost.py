"""Cost model of the float32 GEMM."""

from __future__ import annotations

from gemmule.core.gpu_rates import GpuRates

from .config import CpAsyncConfig

#: For tiles of so many elements, on an H200: nanoseconds for one more k of each tile of a multiprocessor, the least for
#: one tile alone, and the k that prologue and epilogue are worth.
_TIMES = {128 * 256: (180.0, 180.0, 97), 128 * 128: (100.0, 100.0, 78), 64 * 64: (36.3, 75.0, 34)}


def cost_of(ctas: int, k: int, config: CpAsyncConfig, gpu: GpuRates) -> float:
    """Return roughly the time in nanoseconds of so many CTAs, of a tile with `k` products each."""
    each, alone, ends = _TIMES.get(config.outputs, (config.outputs / 160, config.outputs / 160, 97))
    tiles = -(-ctas // gpu.multiprocessors)
    return max(each * tiles, alone) * (k + ends)
