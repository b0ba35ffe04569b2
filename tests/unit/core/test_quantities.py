"""Quantities as text: the prefix that keeps them short."""

from __future__ import annotations

import pytest

from gemmule.core.quantities import duration, flop_rate, short_quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (0.25, "0.25 B"), (1, "1 B"), (999, "999 B"), (999.96, "1 kB"), (1000, "1 kB"), (49152, "49.15 kB"),
        (999_949, "999.9 kB"), (999_960, "1 MB"), (2.5e18, "2.5 EB"), (4e22, "4e+04 EB"), (float("inf"), "inf B"),
    ],
)  # fmt: skip
def test_prefixes(value, text):
    assert short_quantity(value, "B") == text


def test_rates_and_times():
    assert flop_rate(989.4e12) == "989.4 TFLOP/s"
    assert flop_rate(12.34e6) == "12.34 MFLOP/s"
    assert [duration(seconds) for seconds in (0, 1.47e-8, 9.04e-6, 0.012, 61.234)] == [
        "0.0 us",
        "14.7 ns",
        "9.0 us",
        "12 ms",
        "61.23 s",
    ]
