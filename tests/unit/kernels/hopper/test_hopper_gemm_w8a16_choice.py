"""Products of few rows by 8-bit weights: when they are read once and widened in registers, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.launch import TensorMapParam
from gemmule.core.layout import contiguous
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_w8a16.config import BLOCK, TILE_K, W8A16Config
from gemmule.kernels.hopper.gemm_w8a16.spec import SPEC, costs
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
    # Weights come to few multiprocessors more than once.
    assert -(-rows // choice.config.tile_n) <= 2


def test_many_rows_are_widened_in_memory():
    choice = chosen(problem_of(8192, 8192, 8192))
    assert choice.spec.name == "hopper_gemm_upcast"
    assert dict(choice.refused)[SPEC.name] == "supported, but hopper_gemm_upcast has a lower predicted time"
    assert (
        chosen(dataclasses.replace(problem_of(16, 4096, 4096), precision=Precision.FLOAT8)).spec.name == "hopper_gemm"
    )


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_other_layouts_are_refused(layout):
    assert "not contiguous along K" in SPEC.refuses(problem_of(64, 128, 256, layout), HOPPER)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of(8, 128, 250), "leading dimension of 250 bytes"),
        (
            dataclasses.replace(problem_of(8, 128, 256), c=contiguous(FLOAT32, 8, 128), beta=1),
            "C is float32 and the output bfloat16",
        ),
        (
            gemm_problem(8, 128, 256, "bfloat16", "bfloat16", "nt"),
            "its columns of bfloat16; this kernel takes columns of float8_e4m3fn",
        ),
        (problem_of(8, 128, 256, out="float8_e4m3fn"), "the output is float8_e4m3fn"),
        (dataclasses.replace(problem_of(8, 128, 256), alpha=0), "nothing to multiply"),
    ],
    ids=["pitch", "c", "types", "output", "alpha"],
)
def test_refusals(problem, reason):
    assert reason in SPEC.refuses(problem, HOPPER)
    assert SPEC.why_not(problem, HOPPER, SPEC.default) == SPEC.refuses(problem, HOPPER)


#: Times of configs as measured on an H200, by rows, blocks and CTAs that share K.
MEASURED = {
    (16, 14336, 4096): {(16, 1, 1): 17.5, (16, 1, 2): 18.9, (16, 1, 3): 22.1, (16, 1, 4): 20.7},
    (32, 4096, 4096): {(32, 1, 6): 9.0, (32, 1, 2): 9.6, (32, 1, 7): 10.5, (32, 1, 1): 14.5},
    (64, 28672, 8192): {(64, 2, 1): 67.8, (64, 2, 2): 72.9, (64, 2, 4): 81.9, (64, 2, 8): 103.2},
    (128, 4096, 14336): {(64, 2, 3): 34.7, (128, 2, 6): 41.0, (64, 2, 4): 51.3, (128, 2, 1): 143.1},
    (256, 4096, 4096): {(64, 2, 2): 17.9, (64, 2, 1): 26.6, (128, 2, 3): 27.6, (64, 2, 4): 32.9},
    (256, 14336, 4096): {(128, 2, 1): 47.2, (64, 2, 1): 54.2, (128, 2, 2): 59.6, (64, 2, 2): 67.5},
}


@pytest.mark.parametrize("shape", MEASURED, ids=str)
def test_times_are_those_that_were_measured(shape):
    """The fastest is expected to be it, and its time within 8 %."""
    configs = {(one.tile_n, one.blocks, one.cluster_k): one for one in reversed(SPEC.configs)}
    keys = list(MEASURED[shape])
    found = costs(problem_of(*shape), [configs[key] for key in keys], H200_RATES)
    fastest = min(MEASURED[shape], key=MEASURED[shape].__getitem__)
    assert keys[found.index(min(found))] == fastest
    assert min(found) == pytest.approx(MEASURED[shape][fastest], rel=0.08)


def test_rows_beyond_those_that_were_measured_are_widened_in_memory():
    assert chosen(problem_of(512, 14336, 4096)).spec is SPEC
    assert chosen(problem_of(513, 14336, 4096)).spec.name == "hopper_gemm_upcast"


@pytest.mark.parametrize("rows", [64, 100, 128, 256])
def test_rows_of_16_bits_have_room(rows):
    plain = problem_of(rows, 4096, 4096)
    choice = chosen(dataclasses.replace(plain, a=contiguous(BFLOAT16, rows, 4096)))
    assert choice.spec is SPEC
    assert choice.config.shared_bytes(2) <= 227 << 10
    assert choice.config.blocks == 2 or rows < 256


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
        W8A16Config(**fields)
