"""Specs of SYRK kernels: a GEMM kernel whose CTAs are only the tiles on and below the block diagonal of D.

A block lower triangle has steps of 256 rows and columns; columns to the left of its first step are computed in all
rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gemmule.core.arch import Arch
from gemmule.core.dtype import INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, ScalarParam
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Config, KernelSpec, Signature

#: Rows and columns of the steps of a block triangle: a multiple of the extents of tiles.
STEP = 256


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
    package: str,
    configs: Sequence[Config],
    costs: Callable[[Any, Sequence[Any], GpuRates], Sequence[float]],
) -> KernelSpec:
    """Return the spec of the SYRK kernel beside a GEMM kernel `whole`, whose last parameter is ``first``.

    Parameters
    ----------
    whole : KernelSpec
        The GEMM kernel, of whose limits all hold too.
    name, summary, package, configs, costs
        As of `KernelSpec`.
    """
    return KernelSpec(
        name=name,
        operation=whole.operation,
        summary=summary,
        package=package,
        archs=whole.archs,
        configs=tuple(configs),
        signatures=functools.partial(_signatures, whole),
        why_not=whole.why_not,
        signature=functools.partial(_signature, whole),
        launch=functools.partial(_launch, whole),
        refuses=functools.partial(_refuses, whole),
        costs=costs,
        cost_in_us=whole.cost_in_us,
    )


def _refuses(whole: KernelSpec, problem: GemmProblem, arch: Arch) -> str | None:
    assert whole.refuses is not None
    return why_not_below(problem) or whole.refuses(problem, arch)


def _signature(whole: KernelSpec, problem: GemmProblem, config: Any) -> Signature:
    return signature_below(whole.signature(problem, config), problem)


def _signatures(whole: KernelSpec, arch: Arch) -> tuple[Signature, ...]:
    # A matrix times its own transpose: both operands are K-major, or both MN-major.
    found = ((dict(one), one) for one in whole.signatures(arch))
    return tuple(one for types, one in found if (types["a_major"] == "k") == (types["b_major"] == "k"))


def _launch(whole: KernelSpec, problem: GemmProblem, config: Any) -> Launch:
    recipe = whole.launch(problem, config)
    grid = (tiles_below(problem, config), 1, 1)
    return dataclasses.replace(recipe, grid=grid, params=(*recipe.params, first_tile(problem, config)))


def why_not_below(problem: GemmProblem) -> str | None:
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


def signature_below(signature: Signature, problem: GemmProblem) -> Signature:
    """Return the signature with predicated tiles where the last step reaches beyond the columns of the result.

    Tiles divide such a result, and the last of a row is beyond it: whole tiles would be written into the next row.
    """
    if problem.needed is None or problem.needed.columns(max(problem.m - 1, 0)) <= problem.n:
        return signature
    return tuple((name, "ragged" if name == "tiles" else value) for name, value in signature)


def first_tile(problem: GemmProblem, config: TileConfig) -> ScalarParam:
    """Return the parameter with the number of tiles to the left of the first step."""
    assert problem.needed is not None
    return ScalarParam("first", INT32, problem.needed.first // config.tile_n)
