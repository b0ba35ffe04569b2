"""When a kernel of hopper_gemm has as many stages as shared memory holds, more than its config names."""

from __future__ import annotations

from gemmule.core.dtype import BFLOAT16, FLOAT16
from gemmule.core.problem import GemmProblem
from gemmule.kernels.hopper.cost.operation import k_tiles_of

from .config import HopperGemmConfig

#: Key of the signatures of such kernels.
ALL_STAGES = "all_stages"
#: Fewest columns and k-tiles of layers of models, and most stages of a config that gains.
_LAYER_COLUMNS, _LAYER_K_TILES, _FEW_STAGES = 2048, 32, 11


def takes_all_stages(problem: GemmProblem, config: HopperGemmConfig, k_major: tuple[bool, bool]) -> bool:
    """Return whether k-tiles fill all shared memory, that of epilogue tiles too where each CTA has one tile at most.

    So are plain layers with 16-bit weights; products with a short K take longer (records 20261130T165438 and
    20261130T172829).

    Parameters
    ----------
    problem, config
        The product and the config.
    k_major : tuple of bool
        Whether the kernel's A and B are K-major.
    """
    plain = problem.c is None and problem.epilogue is None and not problem.batch and config.cluster_k == 1
    types = {problem.a.dtype, problem.d.dtype}
    is_layer = max(problem.m, problem.n) >= _LAYER_COLUMNS and k_tiles_of(problem) >= _LAYER_K_TILES
    return plain and types <= {BFLOAT16, FLOAT16} and is_layer and config.stages <= _FEW_STAGES and all(k_major)
