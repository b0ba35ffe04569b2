"""The normal distribution's cumulative function in single precision, by one polynomial and one power of two."""

from __future__ import annotations

#: -log2 of its value at -z by powers of z, from the first on; at 0 it is 1. Fitted for z from 0 to 5.5 (minimax, the
#: function's error times the greater of z and 1); beyond, it goes on growing. The function's error is below 1e-7.
LOG2_TAIL = (
    1.15111077,
    0.459147543,
    0.0527060404,
    -0.00739012985,
    0.000396621967,
    7.73910797e-05,
    -1.66489954e-05,
    9.79109245e-07,
)
