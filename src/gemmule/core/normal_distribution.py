"""The normal distribution's cumulative function below 0, as powers of two of polynomials.

Its value at -z is 2 ** -(1 + z * (p[0] + z * (p[1] + ...))), for z from 0 to the edge.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tail:
    """A polynomial, and up to where it holds."""

    factors: tuple[float, ...]
    edge: float


#: The function's error, and that times z, is below 1e-7: for results in float32.
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
#: Its relative error is below 2 ** -14: for results that are rounded to 16 bits or fewer.
HALF = Tail((1.15048039, 0.460863531, 0.0514186062, -0.00726035051, 0.000619739061, -2.34332329e-05), 6.0)
