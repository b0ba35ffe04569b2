"""Bytes of a launch through each level of the memory, by formula and counted."""

from __future__ import annotations

import dataclasses
import math

from gemmule.core.chips import Chip
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice

from .instrument import Counted
from .sample import buffers, resized, slice_depth, spanned
from .totals import Totals

# Most bytes of an operand that are laid out to see what a wave reads.
_LARGEST = 1 << 28
_LINE = 128
# Loops over K are unrolled so often, at least.
_UNROLLED = 8


@dataclasses.dataclass(frozen=True)
class LevelTraffic:
    """What passes through a level.

    Attributes
    ----------
    name : str
        ``device memory``, ``L2``, ``L1`` or ``shared memory``.
    formula_bytes : int or None
        By arithmetic alone.
    formula : str
        What the formula is.
    bytes : int
        Counted.
    counted : str
        How it was counted.
    """

    name: str
    formula_bytes: int | None
    formula: str
    bytes: int
    counted: str


def levels(
    problem: Problem, totals: Totals, tile: tuple[int | None, ...], memory: tuple[int, str]
) -> tuple[LevelTraffic, ...]:
    """Return the levels, the farthest first.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        What is computed.
    totals : Totals
        The counts.
    tile : tuple of int or None
        Rows and columns of the result that a CTA computes.
    memory : tuple of int and str
        What `memory_bytes` returned.
    """
    found = [
        LevelTraffic("device memory", problem.bytes_min, "each operand once", *memory),
        LevelTraffic("L2", *_by_tiles(problem, tile), totals.l2_bytes, "misses of L1, and stores"),
        LevelTraffic("L1", None, "", 32 * totals.total("sectors"), "sectors of all requests"),
    ]
    if totals.shared_bytes:
        found.append(LevelTraffic("shared memory", None, "", totals.shared_bytes, "what threads ask for"))
    return tuple(found)


def _by_tiles(problem: Problem, tile: tuple[int | None, ...]) -> tuple[int | None, str]:
    """Return the bytes that CTAs read, each its rows of A and columns of B once, and write."""
    if not isinstance(problem, GemmProblem):
        return problem.bytes_min, "each element in and out"
    tile_m, tile_n = tile[:2]
    if tile_m is None or tile_n is None:
        return None, ""
    columns, rows = -(-problem.n // tile_n), -(-problem.m // tile_m)
    read_a = columns * problem.m * problem.k * problem.a.dtype.itemsize
    read_b = rows * problem.n * problem.k * problem.b.dtype.itemsize
    return read_a + read_b + problem.m * problem.n * problem.d.dtype.itemsize, f"tiles of {tile_m} x {tile_n}"


def memory_bytes(
    problem: Problem, choice: Choice, chip: Chip, kernel: Counted, recipe: Launch, blocks: int
) -> tuple[int, str]:
    """Estimate what passes between the L2 cache and device memory, and say how.

    CTAs that run at the same time walk along K together and share what they read; what one wave of CTAs has read is
    still there for the next only where all of it fits into the cache.

    Parameters
    ----------
    problem, choice, chip, kernel, recipe
        The launch.
    blocks : int
        CTAs that a multiprocessor holds.
    """
    least = problem.bytes_min
    ctas, wave = math.prod(recipe.grid), chip.sms * max(blocks, 1)
    if not isinstance(problem, GemmProblem):
        return least, "each element in and out"
    if ctas <= wave:
        return least, "each operand once: one wave"
    if chip.l2_bytes is not None and least <= chip.l2_bytes:
        return least, "each operand once: fits in L2"
    depth = math.lcm(slice_depth(choice.config, problem), _UNROLLED)
    # What is left of K at the end stays, so that the same code runs.
    small = resized(problem, (problem.m, problem.n, min(depth + problem.k % depth, problem.k)))
    assert isinstance(small, GemmProblem)
    if max(spanned(small.a) * small.a.dtype.itemsize, spanned(small.b) * small.b.dtype.itemsize) > _LARGEST:
        return least, "least: too long to follow"
    # What is written is not looked at: rows of the result may lie on each other, and need little memory.
    line = _LINE // small.d.dtype.itemsize
    small = dataclasses.replace(small, d=dataclasses.replace(small.d, row_stride=small.d.row_stride % line))
    if choice.signature(small) != choice.signature(problem):
        return least, "least: waves not followed"
    read = kernel.read_bytes(choice.spec.launch(small, choice.config), buffers(small, seed=1), range(wave))
    of_wave = sum(read.values()) * problem.k // small.k
    outgoing = problem.m * problem.n * problem.d.dtype.itemsize
    if chip.l2_bytes is not None and of_wave + outgoing * wave // ctas <= chip.l2_bytes:
        return least, "each operand once: L2 keeps them"
    return max(least, of_wave * ctas // wave + outgoing), f"waves of {wave} CTAs share reads"
