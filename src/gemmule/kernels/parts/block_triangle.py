"""SYRK by a GEMM kernel: one launch whose CTAs are only the tiles on and below the block diagonal of D.

A * A.T is symmetric: half of it needs no computing. The number of a CTA leads to a tile of a block lower triangle with
steps of 256, in groups of rows as in the GEMM. Blocks on the diagonal are computed whole: of a triangle with n rows,
about 256 / n more than the half. Columns to the left of the first step are computed in all rows. There is only one last
wave of CTAs that may leave SMs idle, where parts of the triangle, launched one by one, would have one each.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from gemmule.core.arch import Arch
from gemmule.core.block_triangle import STEP
from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Buildable, KernelSpec, Signature

from .batched_launch import tile_grid


class TileConfig(Protocol):
    """A config with a tile of D."""

    @property
    def tile_m(self) -> int:
        """Rows."""

    @property
    def tile_n(self) -> int:
        """Columns."""


def syrk_spec(
    whole: KernelSpec,
    *,
    name: str,
    summary: str,
    smallest: int = 1,
) -> KernelSpec:
    """Return the spec of the SYRK by a GEMM kernel, with `LowerTriangularTileScheduler` for its own.

    Parameters
    ----------
    whole : KernelSpec
        The GEMM kernel, all of whose limits hold; its ``buildable(config, types, scheduler)`` takes the scheduler.
    name, summary
        As of `KernelSpec`.
    smallest : int
        Extent of the smallest tiles. Configs with smaller ones, or clusters that share a tile, are for small results.
    """
    every: tuple[Any, ...] = whole.configs
    configs = [one for one in every if _is_alone(one) and min(one.tile_m, one.tile_n) >= smallest]
    return dataclasses.replace(
        whole,
        name=name,
        summary=summary,
        configs=tuple(configs),
        epilogues=False,
        absmax=False,
        signatures=functools.partial(_signatures, whole),
        signature=functools.partial(_signature, whole),
        launch=functools.partial(_launch, whole),
        build=functools.partial(_build, whole.package),
        why_not=functools.partial(_why_not_config, whole),
        refuses=functools.partial(_refuses, whole),
        refuses_types=None,
        cost=None,
        costs=functools.partial(_costs, whole),
    )


def _build(package: str, config: Any, signature: Signature) -> Buildable:
    from .schedulers.data_parallel import LowerTriangularTileScheduler

    kernel = importlib.import_module(f"{package}.kernel")
    found: Buildable = kernel.buildable(config, dict(signature), LowerTriangularTileScheduler)
    return found


def _is_alone(config: Any) -> bool:
    """Return whether a CTA has a tile of its own, and tiles divide the steps of a block triangle."""
    shared = getattr(config, "cluster_k", 1) > 1 or getattr(config, "stream_k", 0)
    return not (STEP % config.tile_m or STEP % config.tile_n or shared)


def _costs(whole: KernelSpec, problem: GemmProblem, configs: Sequence[Any], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: those of the whole result, times the share of its tiles."""
    assert whole.costs is not None
    return [
        time * tiles_below(problem, config) / tile_grid(problem, config.tile_m, config.tile_n)[0]
        for time, config in zip(whole.costs(problem, configs, gpu), configs, strict=True)
    ]


def _refuses(whole: KernelSpec, problem: GemmProblem, arch: Arch) -> str | None:
    assert whole.refuses is not None
    return _why_not_below(problem) or whole.refuses(problem, arch)


def _why_not_config(whole: KernelSpec, problem: GemmProblem, arch: Arch, config: Any) -> str | None:
    """Say why a config has no block triangle, or why the GEMM refuses it; None where neither does."""
    if not _is_alone(config):
        return f"config {config}: tiles must divide steps of {STEP}, one CTA each"
    return whole.why_not(problem, arch, config)


def _signature(whole: KernelSpec, problem: GemmProblem, config: Any) -> Signature:
    """Return the GEMM's, with predicated tiles where the last step reaches beyond the columns of the result.

    Tiles divide such a result, and the last of a row is beyond it: whole tiles would be written into the next row.
    """
    found = whole.signature(problem, config)
    if problem.needed is None or problem.needed.columns(max(problem.m - 1, 0)) <= problem.n:
        return found
    return tuple((name, "ragged" if name == "tiles" else value) for name, value in found)


def _signatures(whole: KernelSpec, arch: Arch) -> tuple[Signature, ...]:
    # A matrix times its own transpose: both operands are K-major, or both MN-major.
    found = ((dict(one), one) for one in whole.signatures(arch))
    return tuple(one for types, one in found if (types["a_major"] == "k") == (types["b_major"] == "k"))


def _launch(whole: KernelSpec, problem: GemmProblem, config: Any) -> Launch:
    """Return the GEMM's launch recipe with fewer CTAs, and the number of tiles to the left of the first step."""
    assert problem.needed is not None
    recipe = whole.launch(problem, config)
    first = ScalarParam("first", INT32, problem.needed.first // config.tile_n)
    return dataclasses.replace(recipe, grid=(tiles_below(problem, config), 1, 1), params=(*recipe.params, first))


def _why_not_below(problem: GemmProblem) -> str | None:
    """Say why a SYRK kernel cannot compute the block triangle of a problem, or None where it can."""
    if problem.needed is None:
        return "all of the result is needed; this kernel computes a block lower triangle"
    first, step = problem.needed.first, problem.needed.step
    if step != STEP or first % STEP or first < 0:
        return (
            f"the block triangle has steps of {step} after {first} columns; this kernel takes steps of {STEP} after a "
            "multiple of them"
        )
    if problem.n < first + problem.m:
        return f"the block triangle ends at column {first + problem.m}, beyond the {problem.n} of the result"
    if problem.batch:
        return f"the batch is {problem.batch}; this kernel takes single matrices"
    if not problem.m:
        return "the result has no rows"
    if not problem.d.is_row_major:
        return "the result is column-major; this kernel takes a row-major one"
    return None


def tiles_below(problem: GemmProblem, config: TileConfig) -> int:
    """Return how many tiles are on and below the block diagonal, each step as wide as the others."""
    assert problem.needed is not None
    up, over, first = STEP // config.tile_m, STEP // config.tile_n, problem.needed.first // config.tile_n
    steps, left = divmod(-(-problem.m // config.tile_m), up)
    return up * (steps * first + over * (steps * (steps + 1) // 2)) + left * (first + over * (steps + 1))
