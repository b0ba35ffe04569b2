"""Bytes of a launch through each level of the memory, by formula and counted."""

from __future__ import annotations

import dataclasses

from gemmule.core.problem import GemmProblem, Problem

from .behind_l2 import Behind
from .totals import Totals


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


def levels(problem: Problem, totals: Totals, tile: tuple[int | None, ...], memory: Behind) -> tuple[LevelTraffic, ...]:
    """Return the levels, the farthest first.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        What is computed.
    totals : Totals
        The counts.
    tile : tuple of int or None
        Rows and columns of the result that a CTA computes.
    memory : Behind
        What passes between the L2 cache and device memory.
    """
    found = [
        LevelTraffic("device memory", problem.bytes_min, "each operand once", memory.bytes, memory.how),
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
