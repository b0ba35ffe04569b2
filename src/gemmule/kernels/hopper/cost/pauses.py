"""Times in which Hopper's persistent kernels multiply nothing, beside those of the tiles themselves."""

from __future__ import annotations

from gemmule.core.epilogue_inputs import factors_of
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.gemm.config import ProductionConfig

from .operation import k_tiles_of

#: Microseconds in which accumulators of a k-tile of 8-bit floats are promoted, and more for each column: between those
#: measured on an H200 at 2048 and 4096.
_PROMOTE_US = 0.01, 0.0003
#: Microseconds of an epilogue, or of C, of 2**15 elements, where the other warpgroup does not multiply meanwhile: 1.2
#: to 3.2 were measured on an H200, and tiles of 128 x 128 in turns were faster there than the times predict.
_FINISH_US = 5.0


def promote_us(problem: GemmProblem, config: ProductionConfig, multiprocessors: int) -> float:
    """Return the time in which nothing is multiplied, since one warpgroup of a CTA takes over sums of 8-bit floats.

    Parameters
    ----------
    problem : GemmProblem
        The product, its result in rows.
    config : ProductionConfig
        The config.
    multiprocessors : int
        The GPU's.
    """
    if not config.pingpong:
        return 0.0
    k_tiles = -(-k_tiles_of(problem) // config.cluster_k)
    first, more = _PROMOTE_US
    return _waves(problem, config, multiprocessors) * k_tiles * (first + more * config.tile_n)


def finish_us(problem: GemmProblem, config: ProductionConfig, multiprocessors: int) -> float:
    """Return the time in which nothing is multiplied, since both warpgroups of a CTA compute an epilogue.

    Parameters as of `promote_us`.
    """
    if config.pingpong:
        return 0.0
    waves = _waves(problem, config, multiprocessors)
    return _FINISH_US * waves * config.outputs / config.cluster_k / 2**15


def _waves(problem: GemmProblem, config: ProductionConfig, multiprocessors: int) -> int:
    """Return how many tiles the busiest CTA computes."""
    columns = problem.n * factors_of(problem.epilogue)
    m, n = (columns, problem.m) if config.swap_ab else (problem.m, columns)
    at_once = max(min(multiprocessors // config.cluster, config.clusters), 1)
    rows, cols = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    return -(-(-(-m // rows) * -(-n // cols) * (problem.batch or (1,))[0]) // at_once)
