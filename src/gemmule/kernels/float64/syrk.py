"""SYRK in float64: `float64_gemm` with a CTA for each tile on and below the block diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gemmule.core.block_triangle import STEP
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.problem import GemmProblem
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.cost import costs as whole_costs
from gemmule.kernels.float64.gemm.spec import SPEC as WHOLE
from gemmule.kernels.parts.batched_launch import tile_grid
from gemmule.kernels.parts.block_triangle import syrk_spec, tiles_below


def costs(problem: GemmProblem, configs: Sequence[Float64Config], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: that of the whole result, times the share of its tiles."""
    return [
        time * tiles_below(problem, config) / tile_grid(problem, config.tile_m, config.tile_n)[0]
        for time, config in zip(whole_costs(problem, configs, gpu), configs, strict=True)
    ]


SPEC = syrk_spec(
    WHOLE,
    name="float64_syrk",
    summary="float64 SYRK: a CTA for each tile on and below the block diagonal, none above",
    # Large results: clusters that share a tile, and narrow tiles, are for small ones.
    configs=tuple(
        config
        for config in cast("tuple[Float64Config, ...]", WHOLE.configs)
        if config.cluster_k == 1 and min(config.tile_m, config.tile_n) >= 64 and STEP % config.tile_n == 0
    ),
    costs=costs,
)
