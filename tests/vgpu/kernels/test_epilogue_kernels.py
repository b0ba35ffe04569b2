"""Epilogues of every kernel that knows them, on the virtual GPU."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import gemmule as gm
import gemmule.epilogue as ep
from gemmule.compiler import cache
from gemmule.core.dtype import dtype_named
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from support.epilogue_cases import CASES, gelu_tanh, silu
from support.vgpu.epilogues import finish
from support.vgpu.kernels_left import leave_kernels

#: Those that take bfloat16.
SPECS = {
    spec.name: spec
    for spec in REGISTRY
    if spec.epilogues and spec.next_kernel is None and spec.name not in ("hopper_gemm_w8a16", "simt_gemm")
}


def numbered(name, **fields):
    """The kernel's first config with those fields."""
    configs = SPECS[name].configs
    return next(config for config in configs if config.as_dict() | fields == config.as_dict())


@pytest.fixture
def only(monkeypatch):
    """Leave one kernel in one config to the virtual GPU."""

    def leave(name, **fields):
        spec = dataclasses.replace(SPECS[name], configs=(numbered(name, **fields),))
        leave_kernels(monkeypatch, (spec,))

    return leave


def test_h09_with_c_a_bias_and_a_number(only, rng):
    # Tiles of two boxes.
    only("hopper_gemm", tile_m=64, tile_n=128)
    finish(CASES["named_c"], rng, shape=(72, 152, 200))


def test_h09_with_special_values(only):
    only("hopper_gemm", tile_m=64, tile_n=64, swap_ab=0, cluster_k=1)
    x = np.array([1, math.nan, -1e30, math.inf, -math.inf, -200, -50, 2], dtype_named("bfloat16").numpy())
    a, b = np.zeros((8, 64), x.dtype), np.zeros((64, 8), x.dtype)
    a[:, 0], b[0] = x, 1
    # In columns, where two rows are computed together.
    out = np.full((8, 8), 7, np.float32, order="F")
    got = gm.gemm(a, b, epilogue=lambda acc: ep.silu(acc), executor="vgpu", out=out)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.where(wide < -100, 0, np.where(np.isinf(wide), wide, silu(wide)))
    assert np.isnan(got[1]).all()
    np.testing.assert_allclose(got[[0, 2, 3, 4, 5, 6, 7]], np.tile(exact[[0, 2, 3, 4, 5, 6, 7], None], 8), 1e-5, 1e-15)


@pytest.mark.parametrize("kernel", ["mma_sync_gemm", "mma_sync_small"])
def test_mma_sync_with_a_bias_by_row(kernel, only, rng):
    only(kernel, tile_m=64, tile_n=64)
    finish(CASES["row_bias_silu"], rng, shape=(67, 71, 40))


@pytest.mark.combinations(1)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kernel", ["mma_sync_gemm", "mma_sync_small", "simt_gemm"])
def test_inputs_have_any_strides(kernel, order, rng):
    m, n, k, dtype = 35, 36, 40, np.float32 if kernel == "simt_gemm" else np.float16
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    bias, factor = (rng.standard_normal(shape).astype(dtype)[..., ::2] for shape in (2 * n, (m, 2 * n)))
    out = np.full((m, n), np.nan, dtype, order=order)
    gm.gemm.plan(
        a, b, bias=bias, epilogue=lambda acc, factor: acc * factor, epilogue_args={"factor": factor}, out=out,
        executor="vgpu", kernel=kernel,
    ).run()  # fmt: skip
    a, b, bias, factor = (x.astype("f8") for x in (a, b, bias, factor))
    bound = (np.abs(a) @ np.abs(b) + np.abs(bias)) * np.abs(factor)
    # A rounding a step of the sum and three after it: what no data exceed. float16 is summed in float32.
    steps = k + 3 if dtype == np.float32 else 4
    assert (np.abs(out - (a @ b + bias) * factor) <= steps * np.finfo(dtype).eps / 2 * bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("kernel", sorted(SPECS))
def test_cases(kernel, name, only, rng):
    fields = {} if kernel == "gemm_reference" else {"tile_m": 64, "tile_n": 64}
    only(kernel, **fields)
    shape = (72, 88, 72) if fields else (18, 22, 9)
    finish(CASES[name], rng, shape=shape)
    finish(CASES[name], rng, shape=shape, out="float32", order="F")


@pytest.mark.parametrize(
    "fields",
    [
        # Four batches that shared memory holds at once, then two of several in two buffers.
        {"tile_n": 128, "stages": 5},
        pytest.param({"tile_n": 160, "stages": 5}, marks=pytest.mark.slow),
        pytest.param({"tile_n": 160, "stages": 5, "swap_ab": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name", ["two_matrices", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bias_gelu", "row_bias_silu"))]
)
def test_batches_with_a_function(fields, name, monkeypatch, rng):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")
    config = HopperGemmConfig(**{"tile_m": 128, "pingpong": 1, "cluster_m": 1, "ctas": 1} | fields)
    stages, batches = config.epi_batches(2, fused=True)
    assert (stages, batches) == ((4, 4) if config.tile_n == 128 else (4, 6))
    leave_kernels(monkeypatch, (dataclasses.replace(SPECS["hopper_gemm"], configs=(config,)),))
    finish(CASES[name], rng, shape=(264, 200, 136))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "fields",
    [
        {"tile_n": 192},
        {"tile_n": 192, "cluster_m": 4, "swap_ab": 1},
        {"tile_n": 256, "pingpong": 0},
        {"cluster_k": 4, "swap_ab": 0},
        {"cluster_k": 4, "swap_ab": 1},
        {"tile_n": 144, "swap_ab": 1},
        {"tile_n": 8, "swap_ab": 1},
    ],
    ids=str,
)
def test_hopper_gemm_however_it_shares_the_work(fields, order, only, rng):
    only("hopper_gemm", **fields)
    for name in ("row_bias_silu", "named_c", "two_matrices"):
        finish(CASES[name], rng, shape=(136, 200, 264), order=order)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", sorted(SPECS))
def test_batches(kernel, only, rng):
    only(kernel)
    finish(CASES["named_c"], rng, shape=(24, 40, 72), batch=(3,))


LAST = {
    "maximum": lambda acc: ep.maximum(acc, 0.5),
    "minimum": lambda acc: ep.minimum(acc, 0.5),
    "neg": lambda acc: -acc,
    "abs": abs,
    "exp": lambda acc: ep.exp(acc),
    "log": lambda acc: ep.log(acc * acc),
    "sqrt": lambda acc: ep.sqrt(abs(acc)),
    "tanh": lambda acc: ep.tanh(acc),
    "erf": lambda acc: ep.erf(acc),
    "sigmoid": lambda acc: ep.sigmoid(acc),
    "where": lambda acc: ep.where(acc > 0, acc, 2 * acc),
    "silu": lambda acc: ep.silu(acc),
    "gelu": lambda acc: ep.gelu(acc),
}
_LAST_CASES = [
    pytest.param(name, dtype, marks=[] if (name, dtype) == ("maximum", "float64") else pytest.mark.slow)
    for name in LAST
    for dtype in ("float64", "float32")
]


@pytest.mark.parametrize(("name", "dtype"), _LAST_CASES)
def test_each_operation_may_be_the_last(name, dtype, only, rng):
    only("gemm_reference")
    # Of either sign, and no sum that cancels: of it a logarithm has no bound.
    a, b = rng.uniform(0.5, 1.5, (9, 5)).astype(dtype), rng.uniform(0.5, 1.5, (5, 7)).astype(dtype)
    b[:, ::2] *= -1
    got = gm.gemm(a, b, epilogue=LAST[name], executor="vgpu")
    assert got.dtype == dtype
    unit = 2.0**-44 if dtype == "float64" else 2.0**-18
    np.testing.assert_allclose(got, gm.gemm(a, b, epilogue=LAST[name], executor="cpu"), unit, unit)


def one_of_three(acc, f):
    """All functions in one kernel: compiling takes longer than running."""
    return ep.where(f < 0.5, ep.gelu(acc), ep.where(f < 1.5, ep.silu(acc), ep.gelu(acc, approximate="tanh")))


def test_functions_are_as_exact_as_stated(only):
    only("gemm_reference")
    x = np.concatenate([np.linspace(-30, 30, 2401), [-1e30, 1e30, -math.inf, math.inf, math.nan]])
    x = x.astype(np.float32)
    which = np.array([[0.0, 1.0, 2.0]], np.float32)
    a, b = x[:, None], np.ones((1, 3), np.float32)
    with np.errstate(all="ignore"):
        wide = x[:-3].astype(np.float64)
        exact = np.stack(
            [wide * np.vectorize(math.erfc)(-wide / math.sqrt(2)) / 2, silu(wide), gelu_tanh(wide)], axis=1
        )
    exact[np.abs(wide) > 1e20] = np.maximum(wide[np.abs(wide) > 1e20], 0)[:, None]
    single = gm.gemm(a, b, epilogue=one_of_three, epilogue_args={"f": which}, executor="vgpu")
    scale = np.maximum(np.abs(wide), 1)[:, None]
    assert np.max(np.abs(single[:-3] - exact) / scale) <= 2.0**-22
    half = gm.gemm(a, b, epilogue=one_of_three, epilogue_args={"f": which}, executor="vgpu", out_dtype="float16")
    finite = np.abs(exact) < 6e4
    error = np.abs(half[:-3].astype(np.float64) - exact)[finite]
    assert np.max(error / (np.abs(exact[finite]) + 2.0**-13)) <= 1.2 * 2.0**-11
    for got in (single, half):
        assert np.isnan(got[-1]).all()
        assert (got[-2] == math.inf).all()
        assert (got[-3] == 0).all()


def test_the_limits_in_float64(only):
    only("gemm_reference")
    a, b, which = np.array([[-math.inf], [math.inf], [math.nan]]), np.ones((1, 3)), np.array([[0.0, 1.0, 2.0]])
    got = gm.gemm(a, b, epilogue=one_of_three, epilogue_args={"f": which}, executor="vgpu")
    np.testing.assert_array_equal(got, np.repeat([[0], [math.inf], [math.nan]], 3, axis=1))


def test_functions_of_one_meaning_are_compiled_once(only, rng):
    only("gemm_reference")
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 5))
    vector = rng.standard_normal(5)

    def compiled(function, **arguments):
        gm.gemm(a, b, epilogue=function, executor="vgpu", **arguments)
        return cache.KERNELS.loaded

    first = compiled(lambda acc, bias: ep.relu(acc + bias) * 1.5, bias=vector)
    given = {"epilogue_args": {"shift": vector}}
    assert compiled(lambda x, shift: 1.5 * ep.maximum(0, shift + x), **given) == first
    assert compiled(lambda x, shift: 2.5 * ep.maximum(0, shift + x), **given) == first + 1
