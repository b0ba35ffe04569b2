"""Products of few rows by 8-bit weights: when they are read once and widened in registers, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import TensorMapParam
from gemmule.core.layout import contiguous
from gemmule.dispatch.select import choose
from gemmule.kernels.gemm.h16_mixed.spec import BLOCK, SPEC, TILE_K, MixedConfig
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")


def problem_of(m, n, k, layout="nt", out="bfloat16"):
    return gemm_problem(m, n, k, "float8_e4m3fn", out, layout)


def chosen(problem):
    return choose(problem, HOPPER, multiprocessors=132)


@pytest.mark.parametrize("rows", [1, 16, 64, 100])
@pytest.mark.parametrize("weights", [(4096, 4096), (14336, 4096), (28672, 8192)], ids=str)
def test_few_rows_take_it(weights, rows):
    choice = chosen(problem_of(rows, *weights))
    assert choice.spec is SPEC
    assert choice.predicted_us > weights[0] * weights[1] / 4.8e6
    assert choice.config.tile_n >= min(rows, 64)


def test_many_rows_are_widened_in_memory():
    choice = chosen(problem_of(8192, 8192, 8192))
    assert choice.spec.name == "h13_widened"
    assert dict(choice.refused)[SPEC.name] == "it can, and h13_widened is expected to be faster"
    assert chosen(dataclasses.replace(problem_of(16, 4096, 4096), precision=Precision.FLOAT8)).spec.name[:3] == "h09"


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_other_layouts_are_refused(layout):
    assert "not contiguous along K" in SPEC.refuses(problem_of(64, 128, 256, layout), HOPPER)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of(8, 128, 250), "pitch of 250 bytes"),
        (
            gemm_problem(8, 128, 256, "bfloat16", "bfloat16", "nt"),
            "its columns of bfloat16; this kernel takes columns of float8_e4m3fn",
        ),
        (problem_of(8, 128, 256, out="float8_e4m3fn"), "the output is float8_e4m3fn"),
        (dataclasses.replace(problem_of(8, 128, 256), alpha=0), "nothing to multiply"),
    ],
    ids=["pitch", "types", "output", "alpha"],
)
def test_refusals(problem, reason):
    assert reason in SPEC.refuses(problem, HOPPER)
    assert SPEC.why_not(problem, HOPPER, SPEC.default) == SPEC.refuses(problem, HOPPER)


def test_k_must_have_a_slice_for_every_cta():
    config = next(one for one in SPEC.configs if one.cluster_k == 8)
    assert "too few to share among 8 CTAs" in SPEC.why_not(problem_of(8, 128, 896), HOPPER, config)
    assert SPEC.why_not(problem_of(8, 128, 912), HOPPER, config) is None


def test_results_in_columns_are_those_of_the_transposed_product():
    """Few columns of a result in columns: B is what is few, and A the weights."""
    plain = problem_of(4096, 8, 512)
    problem = dataclasses.replace(plain, d=contiguous(plain.d.dtype, 8, 4096).transposed())
    launch = SPEC.launch(problem, SPEC.default)
    weights, rows = (param for param in launch.params if isinstance(param, TensorMapParam))
    assert (weights.operand, weights.box[:2], rows.operand) == ("a", (TILE_K, BLOCK), "b")
    assert launch.grid[0] == 4096 // BLOCK


@pytest.mark.parametrize(
    "fields", [{"tile_n": 12}, {"tile_n": 136}, {"cluster_k": 9}, {"residents": 3}, {"stages": 9}], ids=str
)
def test_bad_configs(fields):
    with pytest.raises(ArgumentError, match="config tile_n="):
        MixedConfig(**fields)
