"""Configs of complex128_gemm by TMA: what they take, who runs them, and tiles that nearly fill a wave."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.dispatch.select import choose
from gemmule.kernels.complex.complex128.spec import SPEC
from gemmule.kernels.complex.config import Complex128Config
from gemmule.kernels.float64.config import Float64Config
from gemmule.lab.products import LAYOUTS, gemm_problem

BY_TMA = [one for one in SPEC.configs if one.tma]
HOPPER = Arch(9, 0, True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_products_take_them_on_hopper(layout):
    problem = gemm_problem(4096, 4096, 4096, "complex128", "complex128", layout)
    found = choose(problem, HOPPER, multiprocessors=132, chip="NVIDIA H200", tuned=False)
    assert found.spec.name == SPEC.name
    assert found.config.tma
    for config in BY_TMA:
        assert SPEC.why_not(problem, HOPPER, config) is None
        assert "tma=1 is for" in SPEC.why_not(problem, Arch(10, 0, True), config)


@pytest.mark.parametrize(
    "fields", [{"tile_k": 16, "stages": 4}, {"stream_k": 0}, {"mma_m": 8, "mma_k": 4}, {"warps_m": 8}], ids=str
)
def test_fields_that_tma_does_not_take(fields):
    with pytest.raises(ArgumentError, match="tma=1 takes"):
        dataclasses.replace(BY_TMA[0], **fields)


def test_tiles_that_nearly_fill_a_wave_are_not_shared():
    assert BY_TMA[0].persistent(128, 64) == 128
    assert BY_TMA[0].persistent(132, 64) == BY_TMA[0].persistent(133, 64) == 132
    assert BY_TMA[0].persistent(100, 64) == 132
    assert BY_TMA[0].persistent(3, 2) == 6
    assert Complex128Config(stream_k=1).whole_from == Float64Config().whole_from == 1
    problem = gemm_problem(1024, 1024, 512, "complex128", "complex128", "nn")
    assert SPEC.launch(problem, BY_TMA[0]).grid == (128, 1, 1)
