"""What the kernels share that leave out what lies above a staircase: what they take, and how many tiles that is."""

from __future__ import annotations

from gemmule.core.dtype import INT32
from gemmule.core.launch import ScalarParam
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Signature

#: Rows and columns of the steps that they take: a multiple of the sides of their tiles.
STEP = 256


def why_not_below(problem: GemmProblem) -> str | None:
    """Say why such a kernel cannot take what is needed of a result, or None where it can."""
    if problem.needed is None:
        return "all of the result is needed; this kernel computes what lies on and below a staircase"
    first, step = problem.needed.first, problem.needed.step
    if step != STEP or first % STEP or first < 0:
        return (
            f"the staircase has steps of {step} and begins behind column {first}; this kernel takes steps of {STEP}, "
            "and a multiple of them before"
        )
    if problem.n < first + problem.m:
        return f"the staircase leads to column {first + problem.m}, beyond the {problem.n} of the result"
    if problem.batch:
        return f"the batch is {problem.batch}; this kernel takes single matrices"
    if not problem.m:
        return "the result has no rows"
    if not problem.d.is_row_major:
        return "the result lies in columns; this kernel takes one in rows"
    return None


def tiles_below(problem: GemmProblem, tile_m: int, tile_n: int) -> int:
    """Return how many tiles lie on and below the staircase, each of its steps as wide as the others."""
    assert problem.needed is not None
    up, over, first = STEP // tile_m, STEP // tile_n, problem.needed.first // tile_n
    steps, left = divmod(-(-problem.m // tile_m), up)
    return up * (steps * first + over * (steps * (steps + 1) // 2)) + left * (first + over * (steps + 1))


def signature_below(signature: Signature, problem: GemmProblem) -> Signature:
    """Return the signature with predicated tiles where the last step reaches beyond the columns of the result.

    Tiles divide such a result, and the last of a row lies beyond it: whole tiles would be written into the next row.
    """
    if problem.needed is None or problem.needed.columns(max(problem.m - 1, 0)) <= problem.n:
        return signature
    return tuple((name, "ragged" if name == "tiles" else value) for name, value in signature)


def first_tile(problem: GemmProblem, tile_n: int) -> ScalarParam:
    """Return the parameter that tells how many tiles lie to the left of the first step."""
    assert problem.needed is not None
    return ScalarParam("first", INT32, problem.needed.first // tile_n)
