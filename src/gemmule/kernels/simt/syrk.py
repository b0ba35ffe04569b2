"""SYRK in float32: `g07_cp_async` with a CTA for each tile on and below the block diagonal."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.kernels.ladder.g07_cp_async.spec import SPEC as WHOLE
from gemmule.kernels.parts.block_triangle import syrk_spec, tiles_below
from gemmule.kernels.simt.config import CpAsyncConfig
from gemmule.kernels.simt.cost import cost_of


def costs(problem: GemmProblem, configs: Sequence[CpAsyncConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in nanoseconds."""
    return [cost_of(tiles_below(problem, config), problem.k, config, gpu) for config in configs]


SPEC = syrk_spec(
    WHOLE,
    name="simt_syrk",
    summary="float32 SYRK: a CTA for each tile on and below the block diagonal, none above",
    configs=WHOLE.configs,
    costs=costs,
)
