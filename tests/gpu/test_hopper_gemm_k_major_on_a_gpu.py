"""Products of operands that do not lie along K, transposed first: types, layouts, ragged extents, C, batches, calls."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import Kind, Precision, dtype_named
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from support.gpu import kernel_products
from support.oracle import assert_product, poisoned, random_matrix

SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm_k_major")
TYPES = [
    ("int8", "int32", Precision.IEEE),
    ("float32", "float32", Precision.TF32),
    ("float8_e4m3fn", "float32", Precision.FLOAT8),
    ("float8_e5m2", "bfloat16", Precision.FLOAT8),
]
# A in rows and B in columns need nothing.
LAYOUTS = [("row", "row"), ("col", "row"), ("col", "col")]
multiply = kernel_products.multiply


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


def matrices(rng, dtype, *shapes):
    """All of int8; of floats integers so small that their products and sums are exact in every precision."""
    kind = dtype_named(dtype)
    if kind.kind is Kind.INTEGER:
        return [random_matrix(rng, kind, shape) for shape in shapes]
    return [rng.integers(-3, 3, shape, endpoint=True).astype(kind.numpy()) for shape in shapes]


@pytest.mark.parametrize(
    "shape", [(16, 16, 16), (1, 16, 3), (48, 16, 1), (80, 144, 33), (272, 528, 208), (1040, 304, 1001)], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize(("dtype", "out", "precision"), TYPES)
def test_types_layouts_and_shapes(dtype, out, precision, layout, shape, rng):
    m, n, k = shape
    a, b = matrices(rng, dtype, (m, k), (k, n))
    got = multiply(SPEC, a, b, poisoned(dtype_named(out), (m, n)), kinds=(*layout, "row"), precision=precision)
    assert_product(got, a, b)


@pytest.mark.parametrize("shape", [(67, 65, 131), (1, 3, 5), (257, 131, 1001), (1039, 305, 77)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_tf32_of_any_alignment(layout, shape, rng):
    m, n, k = shape
    a, b, c = (rng.integers(-3, 3, x, endpoint=True).astype(np.float32) for x in ((m, k), (k, n), (m, n)))
    poison = poisoned(dtype_named("float32"), (m, n))
    got = multiply(SPEC, a, b, poison, kinds=(*layout, "row"), c=c, alpha=2, beta=-1, precision=Precision.TF32)
    assert_product(got, a, b, c, 2, -1)


@pytest.mark.parametrize(
    "kinds", [("row", "padded", "row"), ("col", "padded", "row"), ("col", "col", "col")], ids="-".join
)
@pytest.mark.parametrize(("dtype", "out", "precision"), TYPES[:2])
def test_c_pitches_and_results_in_columns(dtype, out, precision, kinds, rng):
    m, n, k = 208, 272, 176
    a, b = matrices(rng, dtype, (m, k), (k, n))
    c = rng.integers(-9, 9, (m, n)).astype(out)
    poison = poisoned(dtype_named(out), (m, n))
    got = multiply(SPEC, a, b, poison, kinds=kinds, c=c, alpha=-2, beta=3, precision=precision)
    assert_product(got, a, b, c, -2, 3)


@pytest.mark.parametrize("batch", [(3,), (2, 4)], ids=str)
@pytest.mark.parametrize(
    ("case", "kinds"),
    [(TYPES[0], ("col", "row", "whole")), (TYPES[1], ("col", "row", "whole")), (TYPES[1], ("whole", "row", "whole"))],
    ids=["int8-both", "tf32-both", "tf32-b"],
)
def test_batches(case, kinds, batch, rng):
    dtype, out, precision = case
    m, n, k = 80, 144, 112
    a, b = matrices(rng, dtype, (*batch, m, k), (*batch, k, n))
    poison = poisoned(dtype_named(out), (*batch, m, n))
    assert_product(multiply(SPEC, a, b, poison, kinds=kinds, batch=batch, precision=precision), a, b)


@pytest.mark.parametrize("config", SPEC.configs, ids=lambda config: str(config).replace(" ", ","))
def test_configs_and_calls_one_after_another(config, rng):
    """Every call finds in its workspaces what it transposed itself, whatever the one before left there."""
    m, n, k = 528, 400, 1008
    run = functools.partial(multiply, SPEC, kinds=("col", "row", "row"), config=config)
    for _ in range(4):
        a, b = matrices(rng, "int8", (m, k), (k, n))
        assert_product(run(a, b, poisoned(dtype_named("int32"), (m, n))), a, b)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_calls_take_it(precision, rng):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    dtype, out = ("int8", torch.int32) if precision == "ieee" else ("float32", torch.float32)
    a, b = matrices(rng, dtype, (5, 512, 1024), (5, 1024, 512))
    da, db = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    if precision == "tf32":
        # One MN-major operand wgmma takes as it is, of two one is transposed.
        da = da.mT.contiguous().mT
    assert "hopper_gemm_k_major" in str(gm.matmul.plan(da, db, out_dtype=out, precision=precision))
    for _ in range(3):
        got = gm.matmul(da, db, out_dtype=out, precision=precision).cpu().numpy()
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))
