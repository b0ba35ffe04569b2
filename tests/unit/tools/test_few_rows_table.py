"""The table of products of few rows."""

from __future__ import annotations

from pages.few_rows import few_rows_table


def test_times_ratios_and_their_mean():
    one = {
        "record": "few_rows", "m": 4, "n": 4000, "k": 5000, "mixed_us": 8.0, "mixed_error": 1.3e-8, "widened_us": 32.0,
        "cublaslt_us": 4.0, "cublaslt_fast_us": 6.0,
    }  # fmt: skip
    lines = few_rows_table([{"record": "experiment"}, one, one | {"mixed_us": 2.0}]).splitlines()
    assert lines[2] == "| 4 x 4000 x 5000 | 8.00 | 2.50 | 0.500 | 0.750 | 4.000 | 1.3e-08 | 0.125 |"
    assert lines[4] == "| geometric mean |  |  | 1.000 | 1.500 | 8.000 |  | 0.125 |"


def test_the_fastest_of_searched_configs_and_a_type_that_cublaslt_does_not_take():
    one = {"record": "few_rows", "m": 4, "n": 4000, "k": 5000, "mixed_us": 8.0, "mixed_error": 0.0, "widened_us": 32.0}
    found = {"tile_n=8 blocks=1_us": 7.0, "tile_n=8 blocks=2_us": 9.0, "tile_n=8 blocks=2_samples_us": [1.0]}
    lines = few_rows_table([one | found, one | {"mixed_us": 6.0, "tile_n=8 blocks=1_us": 7.0}]).splitlines()
    assert (
        lines[0]
        == "| M x N x K | hopper_gemm_w8a16, us | fastest config, us | weights, TB/s | vs hopper_gemm_upcast | error |"
    )
    assert lines[2] == "| 4 x 4000 x 5000 | 8.00 | 7.00 | 2.50 | 4.000 | 0.0e+00 |"
    assert lines[3].startswith("| 4 x 4000 x 5000 | 6.00 | 6.00 |")
    assert lines[4] == "| geometric mean |  |  |  | 4.619 |  |"
