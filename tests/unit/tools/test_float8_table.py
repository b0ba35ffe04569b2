"""The table of products of 8-bit floats."""

from __future__ import annotations

from pages.float8 import float8_table


def test_rates_ratios_and_errors():
    one = {
        "record": "float8", "m": 1000, "n": 2000, "k": 500, "float8_us": 10.0, "float8_error": 1.3e-4,
        "default_us": 20.0, "default_error": 0.0, "cublaslt_us": 11.0, "cublaslt_fast_us": 9.0,
    }  # fmt: skip
    lines = float8_table([{"record": "experiment"}, one, one | {"reference_us": 1000.0}]).splitlines()
    assert lines[2] == "| 1000 x 2000 x 500 | 200.0 | 1.100 | 0.900 | 1.3e-04 | 100.0 | 0.550 | 0.0e+00 |  |"
    assert lines[3].endswith(" | 2.0 |")
