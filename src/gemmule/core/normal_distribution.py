"""Approximations of the normal distribution's cumulative function below 0.

Its value at -z is 2 ** -(1 + z * (p[0] + z * (p[1] + ...))), for z from 0 to the edge.
"""

from __future__ import annotations

from gemmule.core.dataclass import dataclass


@dataclass(frozen=True)
class Tail:
    """Coefficients p of a polynomial, and the edge of its range."""

    factors: tuple[float, ...]
    edge: float


#: Absolute error, and error times z, below 1e-7: for float32.
SINGLE = Tail(
    (
        1.15111077,
        0.459147543,
        0.0527060404,
        -0.00739012985,
        0.000396621967,
        7.73910797e-05,
        -1.66489954e-05,
        9.79109245e-07,
    ),
    12.0,
)
#: Relative error below 2 ** -11: for bfloat16 and results of 8 bits.
SHORT = Tail((1.14633463, 0.470895861, 0.0435741662, -0.00459380873, 0.000209456135), 6.0)
#: Relative error below 2 ** -14: for float16.
HALF = Tail((1.15048039, 0.460863531, 0.0514186062, -0.00726035051, 0.000619739061, -2.34332329e-05), 6.0)
