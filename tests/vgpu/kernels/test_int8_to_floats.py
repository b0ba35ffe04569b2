"""Floats of int8 products: int32 sums, scaled in float32, on the virtual GPU, all checks on."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32, INT8
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.kernels.hopper.gemm_k_major.spec import SPEC as K_MAJOR
from gemmule.kernels.simt.reference.spec import SPEC as REFERENCE
from support.oracle import poisoned, random_matrix
from support.vgpu.kernel_products import laid_out, multiply

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

OUTPUTS = (FLOAT16, BFLOAT16, FLOAT32)
CONFIGS = [
    HopperGemmConfig(tile_m=128, tile_n=128, stages=4, cluster_m=1),
    HopperGemmConfig(tile_m=64, tile_n=48, stages=4, pingpong=1, cluster_m=1, swap_ab=1),
    HopperGemmConfig(tile_m=64, tile_n=64, stages=4, pingpong=1, cluster_m=1, cluster_k=4),
    HopperGemmConfig(tile_m=128, tile_n=64, stages=3, cluster_m=1, split_k=1),
]
#: Powers of two, so that float16 holds the results.
ALPHA, BETA = 2.0**-7, -0.5


def assert_scaled(got, a, b, c=None, alpha=1.0, beta=0.0):
    """Hold a result to a rounding of the sums and of each operation in float32, and one of the result."""
    total = alpha * (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float64)
    added = 0 if c is None else beta * c.astype(np.float64)
    bound = 4 * 2.0**-24 * (np.abs(total) + np.abs(added)) + {2: 2.0**-11, 4: 0.0}[got.itemsize] * (
        1 if got.dtype == np.float16 else 2.0**3
    ) * 1.01 * np.abs(total + added)
    error = np.abs(got.astype(np.float64) - (total + added))
    assert np.isfinite(got.astype(np.float64)).all()
    assert np.all(error <= bound + 2.0**-25)


@pytest.mark.combinations(1)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("out", OUTPUTS, ids=str)
@pytest.mark.parametrize("adds", [False, True], ids=["plain", "c"])
def test_hopper_gemm(config, out, adds, rng):
    m, n, k = config.tile_m + 71, config.tile_n + 16, 128 * config.cluster_k + 48
    a, b = random_matrix(rng, INT8, (m, k)), random_matrix(rng, INT8, (k, n))
    c, factors = (random_matrix(rng, out, (m, n)), (ALPHA, BETA)) if adds else (None, (ALPHA, 0))
    d = multiply(SPEC, a, laid_out(b, "col"), poisoned(out, (m, n)), c, *factors, config=config)
    assert_scaled(d, a, b, c, *factors)


@pytest.mark.parametrize("out", [pytest.param(FLOAT16, marks=pytest.mark.slow), BFLOAT16, FLOAT32], ids=str)
def test_other_kernels(out, rng):
    a, b = random_matrix(rng, INT8, (77, 144)), random_matrix(rng, INT8, (144, 80))
    c = random_matrix(rng, out, (77, 80))
    for spec in (K_MAJOR, REFERENCE):
        d = multiply(spec, a, b, poisoned(out, c.shape), c, ALPHA, BETA)
        assert_scaled(d, a, b, c, ALPHA, BETA)
    a, b = a[:, :13], b[:13, :33]
    assert_scaled(multiply(REFERENCE, a, b, poisoned(out, (77, 33)), None, ALPHA), a, b, alpha=ALPHA)
    assert not multiply(REFERENCE, a[:, :0], b[:0], poisoned(out, (77, 33)), None, ALPHA).any()


#: Kernels by shape: the second's result has rows that TMA does not store.
SHAPES = {(80, 144, 64): "hopper_gemm", (33, 37, 20): "hopper_gemm_repacked"}


@pytest.mark.parametrize("executor", ["cpu", "vgpu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_dequantisation(executor, shape, rng):
    m, n, k = shape
    a, b = random_matrix(rng, INT8, (m, k)), random_matrix(rng, INT8, (n, k)).T
    rows, columns = (rng.uniform(0.5, 2, x).astype(np.float32) * 2**-7 for x in ((m, 1), (1, n)))
    bias = rng.standard_normal(n).astype(np.float32)
    largest = np.empty(1, np.float32)
    plan = gm.gemm.plan(
        a, b, epilogue=lambda acc, rows, columns, bias: gm.epilogue.relu(acc * rows * columns + bias), bias=bias,
        epilogue_args={"rows": rows, "columns": columns}, out_dtype="float32", absmax=largest, executor=executor,
        kernel=SHAPES[shape] if executor == "vgpu" else None,
    )  # fmt: skip
    expected = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float64) * rows * columns + bias
    got = plan.execute()
    np.testing.assert_allclose(got, np.maximum(expected, 0), rtol=2e-6, atol=2e-6)
    assert largest[0] == got.max()


@pytest.mark.combinations(2)
@pytest.mark.parametrize("shape", [(33, 37, 20), (33, 37, 0), (80, 144, 64)])
@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize("adds", [False, True], ids=["plain", "c"])
def test_an_alpha_with_c_of_another_layout(shape, out, adds, rng):
    m, n, k = shape
    a, b = random_matrix(rng, INT8, (m, k)), random_matrix(rng, INT8, (k, n))
    c = np.asfortranarray(rng.standard_normal((m, n)).astype(out)) if adds else None
    given = np.full((m, n), np.nan, out)
    got = gm.gemm(a, b, c, alpha=ALPHA, beta=BETA * adds, out=given, executor="vgpu")
    assert got is given
    assert_scaled(got, a, b, c, ALPHA, BETA)


def test_an_alpha_of_sums_in_a_workspace(rng):
    a, b = random_matrix(rng, INT8, (33, 20)), random_matrix(rng, INT8, (20, 37))
    bias = rng.standard_normal(37).astype(np.float32)
    plan = gm.gemm.plan(a, b, alpha=ALPHA, bias=bias, out_dtype="float32", executor="vgpu")
    assert "computed from accumulators in a workspace" in plan.rewrite
    np.testing.assert_allclose(plan.execute(), ALPHA * (a.astype(np.int32) @ b) + bias, rtol=1e-6, atol=1e-6)


def test_sums_that_wrap_become_no_floats():
    a, b = np.full((1, 2**17), -128, np.int8), np.full((2**17, 16), -128, np.int8)
    with pytest.raises(gm.UnsupportedError, match=r"K of at most 131071 on a GPU; got K=131072: split K"):
        gm.gemm(a, b, out_dtype="float32", executor="vgpu")
    np.testing.assert_array_equal(gm.gemm(a, b, out_dtype="float32", executor="cpu"), 2.0**31)


def test_what_is_refused(rng):
    x = random_matrix(rng, INT8, (16, 16))
    bias, wide = np.ones(16, np.float32), x.astype(np.int32)
    for given, name in (
        ({"bias": bias}, "bias"),
        ({"bias": wide[0], "out_dtype": "int32"}, "bias"),
        ({"epilogue": "relu", "out_dtype": "int8"}, "epilogue"),
        ({"absmax": bias[:1]}, "absmax"),
        ({"bias": bias, "epilogue": "gelu", "absmax": bias[:1]}, "bias, epilogue, absmax"),
    ):
        with pytest.raises(gm.DTypeError, match=f"^{name}: integer results take no .* give out_dtype='float32'"):
            gm.gemm(x, x, executor="cpu", **given)
    with pytest.raises(gm.DTypeError, match=r"a gated activation of int8 x int8 .* convert a and b to float16"):
        gm.gemm(x, x, epilogue="swiglu", out_dtype="float16", executor="cpu")
    with pytest.raises(gm.DTypeError, match="not of int32 x int32; convert the operands"):
        gm.gemm(wide, wide, bias=bias, out_dtype="float32")
    with pytest.raises(gm.UnsupportedError, match=r"int8 products are written on a GPU as .*, not float64; convert"):
        gm.gemm.plan(x, x, out_dtype="float64", chip="h200")
    with pytest.raises(gm.UnsupportedError, match="int32 products are written on a GPU as int32 or int8, not float32"):
        gm.gemm.plan(wide, wide, out_dtype="float32", chip="h200")


@pytest.mark.combinations(2)
@pytest.mark.parametrize("dtype", ["int32", "int8"])
@pytest.mark.parametrize(("shape", "layout"), [((80, 144, 64), "col"), ((33, 37, 20), "row"), ((33, 37, 0), "row")])
@pytest.mark.parametrize("out", [FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("named", [False, True], ids=["beta", "named"])
def test_an_integer_c(dtype, shape, layout, out, named, rng):
    """C is rounded to float32, the type of the scalars, not to the result's."""
    m, n, k = shape
    a, b = random_matrix(rng, INT8, (m, k)), laid_out(random_matrix(rng, INT8, (k, n)), layout)
    c = rng.integers(-(2**30), 2**30, (m, n)).astype(np.int32) if dtype == "int32" else random_matrix(rng, INT8, (m, n))
    beta = 2.0**-16 if dtype == "int32" else BETA
    given = {"alpha": ALPHA, "out_dtype": out.name, "executor": "vgpu"}
    if named:
        given |= {"epilogue": lambda acc, c, beta: acc + beta * c, "epilogue_args": {"beta": beta}}
    else:
        given |= {"beta": beta}
    plan = gm.gemm.plan(a, b, c, **given)
    if k:
        assert plan.kernel != "gemm_reference"
    assert_scaled(plan.execute(), a, b, c, ALPHA, beta)
