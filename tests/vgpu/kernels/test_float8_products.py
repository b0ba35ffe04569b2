"""Products of 8-bit floats on the virtual GPU, all checks on, with sums of 13 bits as Hopper makes them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.vgpu.arch import virtual_arch
from support.float8_bounds import SEEN, assert_promoted
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Two parts of the columns, and one.
TURNS = HopperGemmConfig(tile_m=64, tile_n=64, stages=3, pingpong=1, cluster_m=1)
NARROW = HopperGemmConfig(tile_m=64, tile_n=16, stages=3, pingpong=1, cluster_m=1)
SHARED = HopperGemmConfig(tile_m=128, tile_n=192, stages=3, cluster_m=1)
HALVES = HopperGemmConfig(tile_m=128, tile_n=256, stages=3, cluster_m=1)
#: An odd multiple of 16 columns, written in epilogue tiles without a swizzle.
ODD = HopperGemmConfig(tile_m=128, tile_n=176, stages=3, cluster_m=1, ctas=2)
MOST = HopperGemmConfig(tile_m=128, tile_n=208, stages=3, cluster_m=1)
PARTS_OF_K = HopperGemmConfig(tile_m=64, tile_n=64, stages=3, pingpong=1, cluster_m=1, cluster_k=2, swap_ab=1)


def multiply(a, b, d, c=None, alpha=1, beta=0, config=TURNS, precision=Precision.FLOAT8):
    problem = dataclasses.replace(problem_of(a, b, d, c, alpha, beta), precision=precision)
    return run_product(Choice(SPEC, config), problem, a, b, d, c, mma="hopper")


@pytest.mark.parametrize("shape", [(65, 72, 144), (1, 8, 16), (136, 40, 1040)], ids=str)
def test_mixed_types(shape, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E5M2, (k, n))
    c = random_matrix(rng, FLOAT32, (m, n))
    got = multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (m, n)), c, 0.5, -2.0)
    assert_promoted(got, a, b, c, 0.5, -2.0)


def test_halves_of_columns(rng):
    a, b = random_matrix(rng, FLOAT8_E4M3, (70, 656)), random_matrix(rng, FLOAT8_E5M2, (656, 272))
    got = multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (70, 272)), config=HALVES)
    assert_promoted(got, a, b)


@pytest.mark.parametrize(
    ("config", "out", "adds"),
    [(ODD, BFLOAT16, False), (MOST, BFLOAT16, True), pytest.param(ODD, FLOAT32, True, marks=pytest.mark.slow)],
)
def test_an_odd_multiple_of_16_columns(config, out, adds, rng):
    """The tiles of both CTAs end inside the result, and outside."""
    m, n = 300, config.tile_n + 40
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, 272)), random_matrix(rng, FLOAT8_E5M2, (272, n))
    c = random_matrix(rng, out, (m, n)) if adds else None
    got = multiply(a, laid_out(b, "col"), poisoned(out, (m, n)), c, 1, 0.5 if adds else 0, config)
    assert_promoted(got, a, b, c, 1, 0.5 if adds else 0)


def test_sums_are_promoted(rng):
    """Positive numbers show what is cut: sums of all of K are 13 times as far as may be, and float32's far closer."""
    a, b = rng.random((64, 1024)).astype(FLOAT8_E4M3.numpy()), rng.random((1024, 64)).astype(FLOAT8_E5M2.numpy())
    c = random_matrix(rng, FLOAT32, (64, 64))
    got = multiply(a, laid_out(b, "col"), poisoned(FLOAT32, (64, 64)), c, 1, 0.5)
    error = assert_promoted(got, a, b, c, 1, 0.5)
    assert error > SEEN / 16


@pytest.mark.slow
@pytest.mark.parametrize("config", [TURNS, NARROW, SHARED, HALVES, PARTS_OF_K], ids=str)
@pytest.mark.parametrize("out", [FLOAT32, BFLOAT16, FLOAT16, FLOAT8_E4M3, FLOAT8_E5M2], ids=str)
def test_results_and_configs(config, out, rng):
    m, n, k = 136, 80, 400
    if out.is_float8 and config.swap_ab:
        pytest.skip("results of 8 bits are written in rows")
    a, b, c = random_matrix(rng, FLOAT8_E5M2, (m, k)), random_matrix(rng, FLOAT8_E5M2, (k, n)), None
    got = multiply(a, laid_out(b, "col"), poisoned(out, (m, n)), c, 0.125, config=config)
    assert_promoted(got, a, b, alpha=0.125)


@pytest.mark.parametrize("kind", ["row", pytest.param("col", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", [(70, 48, 72), (16, 144, 40)], ids=str)
def test_results_of_8_bits(shape, kind, rng):
    """C and D of 8 bits, from exact products of 16 bits."""
    m, n, k = shape if kind == "row" else (shape[1], shape[0] // 16 * 16, shape[2])
    a, b, c = (random_matrix(rng, dtype, sides) for dtype, sides in
               ((FLOAT16, (m, k)), (FLOAT16, (k, n)), (FLOAT8_E4M3, (m, n))))  # fmt: skip
    d, added = (laid_out(x, kind) for x in (poisoned(FLOAT8_E4M3, (m, n)), c))
    got = multiply(a, b, d, added, 0.25, 0.5, NARROW, Precision.IEEE)
    assert_product(got, a, b, c, 0.25, 0.5)


def test_results_of_8_bits_saturate(rng):
    a, b = (100 * random_matrix(rng, FLOAT16, sides).astype(np.float32) for sides in ((64, 72), (72, 48)))
    a, b = a.astype(np.float16), b.astype(np.float16)
    got = multiply(a, b, poisoned(FLOAT8_E4M3, (64, 48)), a[:64, :48].astype(FLOAT8_E4M3.numpy()), 1, 0.5, NARROW,
                   Precision.IEEE)  # fmt: skip
    assert np.isin(np.abs(got.astype(np.float32)), 448).mean() > 0.9


def test_coarse_sums_must_be_asked_for():
    a, b = (np.zeros((64, 64), FLOAT8_E4M3.numpy()) for _ in range(2))
    problem = problem_of(a, laid_out(b, "col"), np.zeros((64, 64), np.float32))
    assert "precision='float8'" in SPEC.why_not(problem, virtual_arch(), TURNS)
    assert choose(problem, virtual_arch(), multiprocessors=132).spec.name in ("hopper_gemm_upcast", "hopper_gemm_w8a16")
    asked = dataclasses.replace(problem, precision=Precision.FLOAT8)
    assert choose(asked, virtual_arch(), multiprocessors=132).spec is SPEC
    # What wgmma cannot take is widened, which is more exact than allowed.
    across = dataclasses.replace(asked, b=problem.a)
    assert choose(across, virtual_arch(), multiprocessors=132).spec.name == "hopper_gemm_upcast"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FLOAT16, FLOAT8_E4M3], ids=str)
def test_epilogues_of_8_bit_results(kind, rng):
    """A bias, a function and C, of results of 8 bits: as the host has them, but for one rounding in a hundred."""
    a, b = random_matrix(rng, kind, (72, 64)), laid_out(random_matrix(rng, kind, (64, 80)), "col")
    bias, c = random_matrix(rng, FLOAT32, (80,)), random_matrix(rng, FLOAT8_E5M2, (72, 80))
    options = {"bias": bias, "c": c, "beta": 0.5, "epilogue": "silu", "out_dtype": "float8_e5m2"}
    if kind == FLOAT8_E4M3:
        options["precision"] = "float8"
    got, expected = (gm.gemm(a, b, executor=executor, **options) for executor in ("vgpu", "cpu"))
    apart = got.view(np.uint8) != expected.view(np.uint8)
    assert apart.mean() < 0.01
    assert (np.abs(got.view(np.uint8)[apart].astype(int) - expected.view(np.uint8)[apart]) == 1).all()
