"""Launches whose tiles CTAs share through a workspace: stream-K by persistent CTAs, or by clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from gemmule.core.dtype import FLOAT64, INT32
from gemmule.core.launch import Launch, ScalarParam
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import row_result
from gemmule.kernels.parts.hopper_facts import WARPGROUP
from gemmule.kernels.parts.schedulers.stream_k_workspaces import stream_k_workspaces

from .config import SharedTilesConfig


def why_not_shared(problem: GemmProblem, config: SharedTilesConfig) -> str | None:
    """Say why a product has too many k-tiles for stream-K, or None where it has not."""
    if config.stream_k and -(-problem.k // config.tile_k) * 2 * config.ctas * config.resident >= 2**31:
        return f"K={problem.k} has more k-tiles than the 32-bit numbers of stream_k=1 count, in two waves of tiles"
    return None


def shared_launch(problem: GemmProblem, config: SharedTilesConfig, recipe: Launch) -> Launch:
    """Return the recipe for stream-K, made of that with a CTA or cluster for each tile, which it is without."""
    if not config.stream_k or not recipe.grid[0]:
        return recipe
    k_tiles, division = max(-(-problem.k // config.tile_k), 1), tuple[ScalarParam, ...]()
    if config.split_k:
        ctas, outputs = recipe.grid[0], config.tile_elements // config.writers
        splits = config.splits(ctas // config.cluster_k, k_tiles)
        # The last cluster of a tile adds, and writes no partial sums.
        writing, grid = max(ctas * (splits - 1), 1), (ctas, splits, 1)
    else:
        writing = ctas = config.persistent(recipe.grid[0], k_tiles)
        outputs, grid, division = (
            config.tile_elements,
            (ctas, 1, 1),
            tuple(_division_params(problem, config, ctas, k_tiles)),
        )
    sums = outputs * config.itemsize // FLOAT64.itemsize
    workspaces, tensors = stream_k_workspaces(writing, sums, FLOAT64.itemsize, config.threads // WARPGROUP)
    return dataclasses.replace(recipe, grid=grid, params=(*recipe.params, *tensors, *division), workspaces=workspaces)


def _division_params(problem: GemmProblem, config: SharedTilesConfig, ctas: int, k_tiles: int) -> Iterator[ScalarParam]:
    """Yield how stream-K divides all tiles among the CTAs: the fields of `shared_tiles.SharedTiles`."""
    oriented, _, _ = row_result(problem)
    tiles_m, tiles_n = -(-oriented.m // config.tile_m), -(-oriented.n // config.tile_n)
    tiles = tiles_m * tiles_n * (oriented.batch or (1,))[0]
    # One wave of tiles is shared with those that do not fill a wave.
    whole = tiles // ctas - bool(tiles % ctas and tiles >= ctas)
    base, remainder = divmod((tiles - whole * ctas) * k_tiles, ctas)
    for number in (tiles_m, tiles_n, whole, base, remainder):
        yield ScalarParam("stream-K", INT32, number)
    for divisor in (k_tiles, tiles_m * tiles_n, config.group * tiles_n, max(tiles_m % config.group, 1)):
        yield ScalarParam("stream-K", INT32, max(divisor, 1))
        yield ScalarParam("stream-K", INT32, (2**31 - 1) // max(divisor, 1))
