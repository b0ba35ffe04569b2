"""A few tiles of a kernel whose k-tiles TMA loads, on one SM or by one cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from gemmule.core.arch import Arch
from gemmule.core.chip import Chip
from gemmule.core.launch import Launch
from gemmule.core.occupancy import occupancy
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice

from .instrument import Compile, Counted
from .limits import tensor_peak
from .roles import timeline
from .sample import buffers, k_tile_depth, resized, tile_of, unfolded
from .steps import Rules
from .timeline import Timeline

#: Tiles that a CTA computes in the sample, CTAs of an SM, and k-tiles beyond those that fill the stages.
TILES, CTAS, MORE_K_TILES = 3, 4, 3
_LEAST_K_TILES = 6


def is_pipeline(recipe: Launch) -> bool:
    """Say whether a kernel loads its k-tiles by TMA."""
    return any(hasattr(param, "box") for param in recipe.params)


def sampled_timeline(
    problem: Problem,
    choice: Choice,
    chip: Chip,
    kernel: Counted,
    blocks: int,
    rules: Callable[[Rules], Rules] | None = None,
) -> Timeline | None:
    """Run a sample of a launch, and return its timeline; None where it has none.

    Parameters
    ----------
    problem, choice, chip, kernel
        The launch that is explained.
    blocks : int
        CTAs that an SM holds.
    rules : callable, optional
        Changes how long things take; by default that is as the chip's table and the assumptions of `Rules` say.
    """
    spec, config = choice.spec, choice.config
    if not isinstance(problem, GemmProblem) or not blocks or (own := rules_of(problem, chip)) is None:
        return None
    lengths = rules(own) if rules is not None else own
    recipe = spec.launch(problem, config)
    ctas, every = math.prod(recipe.grid), unfolded(spec, config, problem)
    side_m, side_n = tile_of(spec, config, problem)[:2]
    if not is_pipeline(recipe) or every is None or side_m is None or side_n is None:
        return None
    cluster = math.prod(recipe.cluster)
    there = (-(-problem.m // side_m), -(-problem.n // side_n))
    tiles = min(TILES, -(-every // ctas))
    # An SM has no more CTAs than there are for it.
    held = max(1, min(blocks, CTAS, -(-ctas // chip.sms), there[0] * there[1] // tiles))
    rows, cols = _arranged(tiles * held, there)
    sharers = config.as_dict().get("cluster_k", 1)
    depth, stages = k_tile_depth(config, problem), config.as_dict().get("stages", 1)
    k_tiles = max(stages + MORE_K_TILES, _LEAST_K_TILES) * sharers
    small = resized(
        problem, (min(problem.m, rows * side_m), min(problem.n, cols * side_n), min(problem.k, k_tiles * depth))
    )
    assert choice.signature(small) == choice.signature(problem)
    tiles = rows * cols // held
    launch = dataclasses.replace(spec.launch(small, config), grid=(held * cluster, 1, 1))
    events = kernel.events(launch, buffers(small, seed=2))
    if not any(event.reads for event in events):
        return None
    return timeline(events, lengths, tiles=tiles, multiprocessors=cluster, persistent=every > ctas)


def timeline_of(problem: GemmProblem, choice: Choice, chip: Chip, compile_kernel: Compile) -> Timeline | None:
    """Return the timeline of a kernel and a problem, and nothing else of its explanation."""
    kernel = compile_kernel(choice.spec, choice.config, choice.signature(problem), Arch.for_device(*chip.capability))
    recipe = choice.spec.launch(problem, choice.config)
    shared = recipe.shared_bytes + kernel.static_shared_bytes
    full = occupancy(chip, recipe.threads, registers_per_thread=kernel.registers, shared_bytes=shared)
    return sampled_timeline(problem, choice, chip, kernel, full.blocks)


def rules_of(problem: GemmProblem, chip: Chip) -> Rules | None:
    """Return the rules by the chip's table; None where it has no rate of the tensor cores for the type."""
    rate = tensor_peak(problem, chip)
    if rate is None or chip.tensor_hz is None:
        return None
    return Rules(flop=rate / chip.sms / chip.tensor_hz, shared_bytes=chip.sm.shared_bytes_per_clock)


def _arranged(tiles: int, there: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of so many tiles, or of a few less, that a grid of tiles has."""
    for count in range(tiles, 0, -1):
        for rows in range(min(count, there[0]), 0, -1):
            if count % rows == 0 and count // rows <= there[1]:
                return rows, count // rows
    return 1, 1
