"""Tiles of grouped products, as far as the host knows them: the most there may be, and those of random sizes."""

from __future__ import annotations

import math

from gemmule.core.grouped_problem import AXES, GroupedProblem

#: Most groups along M or N: their running sum of tiles is in shared memory.
MAX_GROUPS = 512


def most_tiles(problem: GroupedProblem, rows: int, cols: int) -> int:
    """Return the most tiles of `rows` x `cols`: along M and N every group, and what is beyond them, may end in one."""
    if problem.axis == "row":
        return problem.m * -(-problem.n // cols)
    more_rows, more_cols = (problem.groups if problem.axis == axis else 0 for axis in "mn")
    matrices = problem.groups if problem.axis == "k" else 1
    return (-(-problem.m // rows) + more_rows) * (-(-problem.n // cols) + more_cols) * matrices


def overlapping_tiles(problem: GroupedProblem, tile: int) -> int:
    """Return the most tiles of that many rows and columns of any offsets, as those that decrease: of each group all."""
    return problem.groups * -(-problem.m // tile) * -(-problem.n // tile)


def expected_tiles(problem: GroupedProblem, rows: int, cols: int) -> int:
    """Return how many tiles of `rows` x `cols` there are, if sizes of groups are random."""
    if problem.axis == "row":
        return problem.m * -(-problem.n * problem.num_b // cols)
    sides = []
    for axis, extent, step in (("m", problem.m, rows), ("n", problem.n * problem.num_b, cols)):
        if axis == problem.axis:
            # Sizes are exponential: so many multiples of `step` are rounded up to, at least one.
            groups = active_groups(problem)
            sides.append(groups / -math.expm1(-step * groups / extent))
        else:
            sides.append(-(-extent // step))
    return max(round(sides[0] * sides[1]), 1) * (problem.groups if problem.axis == "k" else 1)


def active_groups(problem: GroupedProblem) -> int:
    """Return how many groups have a row at most."""
    return min(problem.groups, {"m": problem.m, "n": problem.n, "k": problem.k, "row": problem.m}[problem.axis])


def expected_bytes(problem: GroupedProblem) -> tuple[float, int]:
    """Return the bytes that are read, and those that are written: weights of groups that have no row are not read."""
    written = problem.d.distinct_bytes(problem.batch_of("d"))
    weights = problem.b.distinct_bytes((problem.groups,)) * problem.num_b if AXES[problem.axis] == "b" else 0
    return problem.bytes_min - written - weights * (1 - active_groups(problem) / problem.groups), written
