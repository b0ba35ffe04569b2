"""Predicted times of small matrices of a batch by mma.sync."""

from __future__ import annotations

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem

from .config import MMA_K, BatchedMmaConfig

#: Microseconds of a launch and of each round of loads; bytes a microsecond from memory, and where other work overlaps.
_LAUNCH, _ROUND, _MEMORY, _OVERLAPPED = 1.1, 0.3, 4.2e6, 9.75e6
#: Cycles of a scheduler for loads of vectors and of single elements, an mma.sync and what surrounds it, a tile, and
#: stores of vectors and of single elements; and the share of these that an access outside the matrix costs.
_LOADS, _MMA, _TILE, _STORES, _OUTSIDE = (5.5, 8.2), 24.6, 228.0, (42.6, 79.6), 0.27
#: What a warp alone takes longer than a scheduler of many; registers of an SM, and most warps; cycles a microsecond.
_ALONE, _REGISTERS, _MOST_WARPS, _CYCLES, _SCHEDULERS = 3.2, 65536, 64, 1755.0, 4
#: Limits add up, nearly: the time is the norm of this power of theirs. All is fitted to 59 batches on an H200.
_POWER = 1.3
#: Elements of K of a lane in a step; bytes of an element.
_LANE_K, _ITEM = 4, 2


def cost(
    problem: GemmProblem,
    config: BatchedMmaConfig,
    gpu: GpuRates,
    loads: tuple[tuple[bool, int], tuple[bool, int], int],
) -> float:
    """Return roughly the time in microseconds of a problem whose result lies in rows.

    Parameters
    ----------
    loads : tuple
        Whether loads of A and of B are along K, and their bytes; and the elements of D that are written at once.
    """
    *operands, vector = loads
    steps = -(-problem.k // MMA_K)
    work, inside = 0.0, 1.0
    tiles = (problem.batch or (1,))[0]
    sides = ((problem.m, config.tile_m, config.rows), (problem.n, config.tile_n, config.columns))
    for (along_k, size), (extent, tile, lines) in zip(operands, sides, strict=True):
        count = -(-extent // tile)
        # An empty result has no tiles.
        share = extent / (count * tile) if count else 0.0
        width = min(size // _ITEM, _LANE_K if along_k else lines)
        work += steps * _LOADS[width == 1] * lines * _LANE_K / width * _issued(share)
        tiles, inside = tiles * count, inside * share
    work += steps * _MMA * (config.rows // 2) * config.columns
    width = min(vector, 2 * config.columns)
    work += _STORES[width == 1] * config.rows * 2 * config.columns / width * _issued(inside)
    issue = tiles * (work + _TILE) / (_SCHEDULERS * gpu.multiprocessors * _CYCLES)
    waves = max(tiles / (gpu.multiprocessors * min(_REGISTERS / (32 * config.registers), _MOST_WARPS)), 1.0)
    latency = waves * (_ROUND * -(-steps // config.unroll) + _ALONE * work / _CYCLES)
    limits = issue, latency, problem.bytes_min / gpu.memory_rate(_OVERLAPPED)
    together = float(sum(limit**_POWER for limit in limits) ** (1 / _POWER))
    return _LAUNCH * gpu.launch + max(together, problem.bytes_min / gpu.memory_rate(_MEMORY))


def _issued(share: float) -> float:
    """Return what accesses cost of which a share is inside the matrix."""
    return _OUTSIDE + (1 - _OUTSIDE) * share
