"""Results with an epilogue, held against float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmule.core.dtype import BFLOAT16
from gemmule.core.problem import GemmProblem
from gemmule.host.epilogue import apply
from gemmule.lab.products import as_matrix

#: Rows that are computed in float64.
ROWS = 32


class Rows:
    """Some rows of a product in float64, to hold results against.

    Parameters
    ----------
    problem : GemmProblem
        The product alone.
    inputs : dict of str to ndarray
        Its factors, C and the bias.
    """

    def __init__(self, problem: GemmProblem, inputs: dict[str, Any]) -> None:
        self.rows = np.unique(np.linspace(0, problem.m - 1, ROWS).astype(int))
        a, b = (as_matrix(inputs[name], matrix) for name, matrix in (("a", problem.a), ("b", problem.b)))
        some, wide = a[self.rows].astype(np.float64), b.astype(np.float32).astype(np.float64)
        self.product, self.size = some @ wide, np.abs(some) @ np.abs(wide)
        self.c, self.bias = inputs["c"][self.rows].astype(np.float64), inputs["e0"].astype(np.float64)

    def worst_error(self, problem: GemmProblem, out: Any) -> float:
        """Return the greatest error of a result as a share of its bound."""
        expected, size = self.product + self.c, self.size + np.abs(self.c) + np.abs(self.bias)
        if problem.epilogue is not None and problem.epilogue.second is not None:
            gate, up = totals = np.split(self.product, 2, 1)
            expected = np.empty_like(gate)
            apply(expected, totals, problem.epilogue.expression, None, [], ())
            # What an error of either product makes of the other: the gate's derivative is less than 1.2.
            ours, others = np.split(self.size, 2, 1)
            size = 1.2 * ours * (np.abs(up) + 1) + others * (np.abs(gate) + 1)
            # The gate itself is computed with a relative error of up to 2**-17.
            size = size + 2.0**7 / problem.k * np.abs(expected)
        elif problem.epilogue is not None:
            matrices = [self.bias] if problem.epilogue.matrices else []
            expected = np.empty_like(self.product)
            apply(expected, [self.product], problem.epilogue.expression, self.c, matrices, ())
        bound = BFLOAT16.unit_roundoff * np.abs(expected) * 1.01 + (problem.k + 16) * 2.0**-24 * size
        error = np.abs(out[self.rows].astype(np.float64) - expected) / bound
        return float(error.max()) if np.isfinite(error).all() else float("inf")


def largest_is(found: float, out: Any) -> bool:
    """Return whether a number, rounded as the result is, is its absolute maximum."""
    return bool(np.asarray(found, out.dtype) == np.abs(out.astype(np.float32)).max())
