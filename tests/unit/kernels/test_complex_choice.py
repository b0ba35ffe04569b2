"""Complex products: the config that is expected to be fastest, and its time, beside measured ones of Hopper GPUs."""

from __future__ import annotations

import pytest

from gemmule.core.arch import Arch
from gemmule.dispatch.select import choose
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")

#: By the type and extents: rows and columns of tiles at most 2 % slower than the best, and its median time.
MEASURED = {
    ("complex64", 512, 512, 512): ({(32, 32)}, 27.3),
    ("complex64", 1536, 1536, 1536): ({(32, 32)}, 588),
    ("complex64", 766, 3068, 190): ({(32, 32)}, 84.4),
    ("complex64", 4096, 4096, 4096): ({(128, 128), (64, 128)}, 10471),
    ("complex128", 512, 512, 512): ({(32, 32), (64, 64)}, 23.3),
    ("complex128", 2048, 2048, 2048): ({(64, 64), (32, 64), (128, 64), (64, 128)}, 1206),
    ("complex128", 1536, 1536, 1536): ({(32, 64), (128, 64), (64, 128), (64, 64)}, 546),
}


@pytest.mark.parametrize("product", MEASURED, ids=str)
def test_the_choice_is_among_the_fastest_measured_and_its_time_is_near(product):
    tiles, measured_us = MEASURED[product]
    dtype, m, n, k = product
    choice = choose(gemm_problem(m, n, k, dtype, dtype, "nn"), HOPPER, multiprocessors=132)
    assert choice.spec.name == f"{dtype}_gemm"
    assert (choice.config.tile_m, choice.config.tile_n) in tiles
    assert choice.predicted_us == pytest.approx(measured_us, rel=0.2)
