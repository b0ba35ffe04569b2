"""Predicted times of small matrices of a batch by mma.sync."""

from __future__ import annotations

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem

from .config import MMA_K, BatchedMmaConfig

#: Microseconds of a launch, of a tile alone and of each round of its loads; bytes a microsecond of memory.
_LAUNCH, _ALONE, _ROUND, _MEMORY = 1.0, 0.6, 0.7, 3.8e6
#: Cycles of a scheduler for a load of a warp, an mma.sync, a tile and a store.
_LOAD, _MMA, _TILE, _STORE = 5.0, 4.0, 80.0, 8.0
#: Registers of an SM, those of a thread beside accumulators and elements, and most warps; cycles a microsecond.
_REGISTERS, _OTHERS, _MOST_WARPS, _CYCLES, _SCHEDULERS = 65536, 30, 64, 1755.0, 4
#: Limits overlap: the time is the norm of this power of theirs.
_POWER = 4
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
    each = sum(
        lines * _LANE_K / min(size // _ITEM, _LANE_K if along_k else lines)
        for (along_k, size), lines in zip(operands, (config.rows, config.columns), strict=True)
    )
    stores = config.rows * 2 * config.columns / min(vector, 2 * config.columns)
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n) * (problem.batch or (1,))[0]
    cycles = steps * (_LOAD * each + _MMA * (config.rows // 2) * config.columns) + _TILE + _STORE * stores
    issue = tiles * cycles / (_SCHEDULERS * gpu.multiprocessors * _CYCLES)
    resident = min(_REGISTERS / (32 * (config.registers + _OTHERS)), _MOST_WARPS)
    waves = max(tiles / (gpu.multiprocessors * resident), 1.0)
    latency = waves * (_ALONE + _ROUND * -(-steps // config.unroll))
    moving = problem.bytes_min / gpu.memory_rate(_MEMORY)
    return _LAUNCH * gpu.launch + float((moving**_POWER + issue**_POWER + latency**_POWER) ** (1 / _POWER))
