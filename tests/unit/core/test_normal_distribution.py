"""The polynomials of the normal distribution's cumulative function keep their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemmule.core.normal_distribution import HALF, SHORT


@pytest.mark.parametrize(("tail", "bits"), [(HALF, 14), (SHORT, 11)])
def test_relative_errors(tail, bits):
    z = np.linspace(0, tail.edge, 4001)
    power = np.float32(0)
    for factor in reversed(tail.factors):
        power = power * z.astype("f4") + np.float32(factor)
    found = 2.0 ** (-1 - (z * power).astype("f8"))
    exact = np.array([math.erfc(value / math.sqrt(2)) / 2 for value in z])
    assert (np.abs(found - exact) <= 2.0**-bits * exact).all()
    assert not (np.abs(found - exact) <= 2.0 ** (-bits - 1) * exact).all()
