"""What lies on and below a staircase alone: what the kernel takes, how it is launched."""

from __future__ import annotations

import dataclasses

from gemmule.core.arch import Arch
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.ladder.g07_cp_async.spec import SPEC as WHOLE
from gemmule.kernels.ladder.g07_cp_async.spec import cost_of
from gemmule.kernels.parts.block_triangle import first_tile, signature_below, tiles_below, why_not_below
from gemmule.kernels.simt.config import CpAsyncConfig


def why_not(problem: GemmProblem, arch: Arch, config: CpAsyncConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    return why_not_below(problem) or WHOLE.why_not(problem, arch, config)


def _tiles(problem: GemmProblem, config: CpAsyncConfig) -> int:
    return tiles_below(problem, config.tile_m, config.tile_n)


def launch(problem: GemmProblem, config: CpAsyncConfig) -> Launch:
    """Return the launch recipe: one CTA for each tile that is needed."""
    whole = WHOLE.launch(problem, config)
    params = (*whole.params, first_tile(problem, config.tile_n))
    return dataclasses.replace(whole, grid=(_tiles(problem, config), 1, 1), params=params)


def signature(problem: GemmProblem, config: CpAsyncConfig) -> Signature:
    """Specialise as the kernel of the whole result does."""
    return signature_below(WHOLE.signature(problem, config), problem)


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of a matrix times its own transpose, whose factors lie in the same direction."""
    return tuple(one for one in WHOLE.signatures(arch) if (dict(one)["a_major"] == "k") == (dict(one)["b_major"] == "k"))


def cost(problem: GemmProblem, config: CpAsyncConfig, multiprocessors: int) -> float:
    """Return roughly the time in nanoseconds."""
    return cost_of(_tiles(problem, config), problem.k, config, multiprocessors)


SPEC = KernelSpec(
    name="simt_syrk",
    operation="gemm",
    summary="float32 where only what is on and below the diagonal is needed: a CTA for each of its tiles, none above",
    package=__package__,
    archs=WHOLE.archs,
    configs=WHOLE.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    cost=cost,
)
