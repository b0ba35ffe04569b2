"""Division of a product into tiles and copies, for its launch recipe and its predicted time."""

from __future__ import annotations

import math

from gemmule.core.dtype import DType
from gemmule.core.epilogue_inputs import aligned_with_second, num_b_of
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.problem import GemmProblem, inner_problem
from gemmule.core.row_major import row_result
from gemmule.kernels.parts.batched_launch import tile_grid
from gemmule.kernels.parts.clusters_at_once import clusters_at_once
from gemmule.kernels.parts.leading_dimension import leading_dimension, result_vector

from .config import COPIES, TILE, MmaSyncConfig

#: Batch dimensions that one launch covers.
BATCH_DIMS = 1
#: Most elements of D that a thread writes at once.
_MAX_VECTOR = 8
#: Shared memory and registers of an SM, bytes of the former that each CTA takes besides its own, and registers besides
#: accumulators of a thread.
_SHARED_BYTES, _REGISTERS, _RESERVED, _BESIDE = 227 << 10, 1 << 16, 1 << 10, 96
#: With several clusters a tile: least k-tiles of a CTA, k-tiles that take the time of its begin and
#: end, and most waves.
_LEAST_K_TILES, _BEGIN_K_TILES, _WAVES = 4, 6, 3
#: Bytes of a register, and most registers of a thread for accumulators, fragments and elements that are copied.
WORD, MAX_WORDS = 4, 192


def vector_of(problem: GemmProblem) -> int:
    """Return how many elements of D, and of C, are moved at once: 16 bytes of them, or one."""
    return result_vector(problem, widest(problem.d.dtype))


def widest(dtype: DType) -> int:
    """Return the most elements of D that are moved at once."""
    return min(max(COPIES) // dtype.itemsize, _MAX_VECTOR)


def has_registers(config: MmaSyncConfig, problem: GemmProblem) -> bool:
    """Return whether a thread of a cluster has registers for its copies and its partial sums."""
    copied = min(copied_bytes(problem))
    if copied < WORD:
        return config.tile_elements <= TILE**2
    k_major = problem.a.has_contiguous_rows and problem.b.has_contiguous_cols
    if copied > WORD or problem.a.dtype.itemsize == WORD or k_major:
        # One distance leads from each line to the next, and of single elements a bit says which are inside.
        return True
    copies = (config.tile_m + config.tile_n) * config.k_bytes // (copied * config.threads)
    return config.tile_elements // config.threads + copies <= MAX_WORDS // 2


@cache_last_call
def launch_problem(problem: GemmProblem) -> GemmProblem:
    """Return a launch's problem, its result in rows."""
    inner = inner_problem(problem, BATCH_DIMS)
    return row_result(aligned_with_second(inner))[0]


def columns_of(problem: GemmProblem, config: MmaSyncConfig) -> int:
    """Return the columns of the result that a tile has."""
    return config.tile_n // num_b_of(problem.epilogue)


@cache_last_call
def copied_bytes(problem: GemmProblem) -> tuple[int, int]:
    """Return the bytes that copies of A and of B move at once."""
    return leading_dimension(problem.a, COPIES).copy_bytes, leading_dimension(problem.b, COPIES).copy_bytes


def ctas(problem: GemmProblem, config: MmaSyncConfig) -> int:
    """Return the CTAs of a launch: one for each tile of C and matrix of the batch."""
    return math.prod(grid_of(launch_problem(problem), config))


def splits_of(problem: GemmProblem, config: MmaSyncConfig) -> int:
    """Return how many clusters share each tile with `split_k`, of a problem whose result is in rows."""
    tiles, k_tiles = grid_of(problem, config)[0] // config.cluster_k, problem.k // config.depth(problem.a.dtype)
    return splits(config, tiles, k_tiles)


def splits(config: MmaSyncConfig, tiles: int, k_tiles: int) -> int:
    """Return how many clusters share each of so many tiles of so many k-tiles with `split_k`."""
    return splits_at(config.cluster_k, clusters_at_once(config.cluster_k, resident_ctas(config)), tiles, k_tiles)


def splits_at(cluster_k: int, at_once: int, tiles: int, k_tiles: int) -> int:
    """Return `splits` of clusters of so many CTAs, of which so many run at once."""
    most = k_tiles // cluster_k
    # The kernel multiplies k-tiles by parts in 32 bits.
    most_splits = min(most // _LEAST_K_TILES, (2**31 - 1) // ((k_tiles + 1) * cluster_k))
    # In as many waves as take the fewest k-tiles one after another.
    counts = {max(min(waves * at_once // max(tiles, 1), most_splits), 1): None for waves in range(1, _WAVES + 1)}
    if len(counts) == 1:
        return next(iter(counts))
    return min(counts, key=lambda count: -(-tiles * count // at_once) * (-(-most // count) + _BEGIN_K_TILES))


def resident_ctas(config: MmaSyncConfig) -> int:
    """Return the CTAs that an SM of Hopper holds at a time."""
    registers = config.threads * min(config.tile_elements // config.threads + _BESIDE, 255)
    return max(min(_SHARED_BYTES // (config.shared_bytes + _RESERVED), _REGISTERS // registers), 1)


def grid_of(problem: GemmProblem, config: MmaSyncConfig) -> tuple[int, int, int]:
    """Return the grid of a launch whose problem has its result in rows."""
    return tile_grid(problem, config.tile_m, columns_of(problem, config), config.cluster_k)
