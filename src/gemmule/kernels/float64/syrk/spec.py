"""Double precision, what lies on and below a staircase alone: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from gemmule.core.arch import Arch
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.float64.config import Float64Config
from gemmule.kernels.float64.cost import costs as whole_costs
from gemmule.kernels.float64.gemm.spec import SPEC as WHOLE
from gemmule.kernels.parts.block_triangle import STEP, first_tile, signature_below, tiles_below, why_not_below


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    assert WHOLE.refuses is not None
    return why_not_below(problem) or WHOLE.refuses(problem, arch)


def _tiles(problem: GemmProblem, config: Float64Config) -> int:
    return tiles_below(problem, config.tile_m, config.tile_n)


def launch(problem: GemmProblem, config: Float64Config) -> Launch:
    """Return the launch recipe: one CTA for each tile that is needed."""
    whole = WHOLE.launch(problem, config)
    params = (*whole.params, first_tile(problem, config.tile_n))
    return dataclasses.replace(whole, grid=(_tiles(problem, config), 1, 1), params=params)


def signature(problem: GemmProblem, config: Float64Config) -> Signature:
    """Specialise as the kernel of the whole result does."""
    return signature_below(WHOLE.signature(problem, config), problem)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of a matrix times its own transpose, whose A and B are both K-major or both MN-major."""
    return tuple(one for one in WHOLE.signatures(arch) if (dict(one)["a_major"] == "k") == (dict(one)["b_major"] == "k"))


def costs(problem: GemmProblem, configs: Sequence[Float64Config], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds: the share of the whole result's that is computed."""
    found = whole_costs(problem, configs, multiprocessors)
    return [
        time * _tiles(problem, config) / (-(-problem.m // config.tile_m) * -(-problem.n // config.tile_n))
        for time, config in zip(found, configs, strict=True)
    ]


SPEC = KernelSpec(
    name="float64_syrk",
    operation="gemm",
    summary="float64 where only what is on and below the diagonal is needed: a CTA for each of its tiles, none above",
    package=__package__,
    archs=WHOLE.archs,
    # Large results: clusters that share a tile, and narrow tiles, are for small ones.
    configs=tuple(
        config
        for config in cast("tuple[Float64Config, ...]", WHOLE.configs)
        if config.cluster_k == 1 and min(config.tile_m, config.tile_n) >= 64 and STEP % config.tile_n == 0
    ),
    signatures=signatures,
    why_not=WHOLE.why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
