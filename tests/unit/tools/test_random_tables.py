"""Tables of random products."""

from __future__ import annotations

from pages.random_problems import random_problems_block, untuned_block

RUN = {
    "record": "random_problems", "seed": 5, "most": 5000, "checked": 30, "wrong": 0, "worst_share": 0.51,
    "kernels_compiled": 7, "seconds": 9.5,
    "by": {"dtype": {"float16": 20, "int8": 10}, "kernel": {"fast": 30}, "epilogue": {"none": 25, "bias": 5}},
}  # fmt: skip


def untuned(m, taken, best, **fields):
    return {
        "record": "untuned", "dtype": "bfloat16", "precision": "ieee", "m": m, "n": 8, "k": 16, "layout": "nn",
        "kernel": "hopper_gemm",
        "config": {"tile_m": 128, "tile_n": 64, "cluster_m": 2, "cluster_k": 2, "swap_ab": 1},
        "best_kernel": "hopper_gemm", "best_config": {"tile_m": 64, "tile_n": 64, "pingpong": 1},
        "median_us": taken, "best_us": best, "share": best / taken, **fields,
    }  # fmt: skip


def test_runs_are_added_up():
    text = random_problems_block([{"record": "experiment"}, RUN, RUN | {"seed": 6, "wrong": 1}])
    assert "Seed 5, extents up to 5000: 30 problems checked, 0 wrong; greatest error 0.510 of its bound" in text
    assert "Seed 6, extents up to 5000: 30 problems checked, 1 wrong" in text
    assert "| float16 | 40 |\n| int8 | 20 |" in text
    assert "| fast | 60 |" in text
    assert "| none | 50 |\n| bias | 10 |" in text


def test_choices_beside_a_search():
    text = untuned_block([
        {"record": "experiment"}, untuned(16, 10.0, 10.0), untuned(32, 20.0, 10.0),
        untuned(64, 10.0, 8.5, dtype="float32", precision="tf32", layout="nt"),
    ])  # fmt: skip
    assert "| bfloat16 nn | 2 | 0.707 | 0.500 | 1 | 1 |" in text
    assert "| tf32 nt | 1 | 0.850 | 0.850 | 1 | 0 |" in text
    assert "| all | 3 | 0.752 | 0.500 | 2 | 1 |" in text
    taken = "hopper_gemm 128 x 64 cluster 2 K / 2 swap_ab"
    assert f"| 32 x 8 x 16 | bfloat16 nn | 0.500 | {taken} | 20.0 | hopper_gemm 64 x 64 pingpong | 10.0 |" in text
