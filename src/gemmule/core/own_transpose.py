"""Products of a matrix and its own transpose: how a problem comes to know that it is one."""

from __future__ import annotations

import dataclasses

from .problem import GemmProblem


def mark_own_transpose(problem: GemmProblem, same: bool) -> GemmProblem:
    """Return a problem that says whether its B is its A transposed, in the same memory.

    Parameters
    ----------
    problem : GemmProblem
        Any product.
    same : bool
        Whether A and B begin at the same address. Who keeps launches of the problem, and moves them to other addresses,
        must keep those where this holds apart from the others.
    """
    own = same and problem.b == problem.a.transposed()
    return problem if own == problem.own_transpose else dataclasses.replace(problem, own_transpose=own)
