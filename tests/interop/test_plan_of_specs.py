"""Plans for a chip by its name, of PyTorch's and JAX's shapes without memory."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import numpy_dtype

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

M, N, K = 1024, 512, 768


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_shapes_without_memory_plan_as_arrays(dtype):
    a, b = np.empty((M, K), numpy_dtype(dtype)), np.empty((N, K), numpy_dtype(dtype))
    wanted = str(gm.matmul.plan(a, b.T, chip="h100"))
    ta, tb = (torch.empty(x.shape, dtype=getattr(torch, dtype), device="meta") for x in (a, b))
    assert str(gm.matmul.plan(ta, tb.T, chip="h100")) == wanted
    assert str(gm.matmul.plan(ta, torch.empty(tb.shape, dtype=tb.dtype).T, chip="h100")) == wanted
    jb = np.ascontiguousarray(b.T)
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (a, jb)]
    assert str(gm.matmul.plan(*structs, chip="h100")) == str(gm.matmul.plan(a, jb, chip="h100"))


def test_offsets_and_storages_of_meta_tensors():
    whole = torch.empty(K, K + 8, dtype=torch.float16, device="meta")
    assert gm.matmul.plan(whole[:, 8:], whole[:, 8:], chip="h100").kernel == "hopper_gemm"
    assert gm.matmul.plan(whole[:, 1 : K + 1], whole[:, :K], chip="h100").kernel != "hopper_gemm"
    large = torch.empty(4096, 4096, dtype=torch.float16, device="meta")
    assert gm.matmul.plan(large, large.T, chip="h100").kernel == "hopper_syrk"
    assert gm.matmul.plan(large, torch.empty_like(large).T, chip="h100").kernel != "hopper_syrk"
    with pytest.raises(gm.OverlapError, match="out shares memory with a"):
        gm.matmul.plan(large, large, out=large, chip="h100")
    gm.matmul.plan(large, large, out=torch.empty_like(large), chip="h100")


def test_calls_need_memory():
    x, s = torch.empty(8, 8, device="meta"), jax.ShapeDtypeStruct((8, 8), np.float32)
    for call in (gm.matmul, gm.matmul.plan):
        for spec, kind in ((x, "tensor on device meta"), (s, "ShapeDtypeStruct")):
            with pytest.raises(gm.ArgumentError, match=f"a is a {kind}, which has no elements; .* chip='h100'"):
                call(spec, spec)
    odd = torch.empty(8, 8, device="meta", dtype=torch.float8_e5m2fnuz)
    with pytest.raises(gm.DTypeError, match="a is of dtype float8_e5m2fnuz, which gemmule does not take"):
        gm.matmul.plan(odd, odd, chip="h100")


def test_scaled_and_grouped_products_and_quantisation():
    a, b, offsets = np.empty((M, K), np.float16), np.empty((4, K, N), np.float16), np.zeros(4, np.int32)
    x, y = (np.empty(shape, numpy_dtype("float8_e4m3fn")) for shape in ((M, K), (K, N)))
    rows, blocks = np.ones((M, K // 128), np.float32), np.ones((K // 128, N // 128), np.float32)
    exponents = numpy_dtype("float8_e8m0fnu")
    wanted = [
        gm.grouped_gemm.plan(a, b, offsets, chip="h100"),
        gm.scaled_gemm.plan(x, y, rows, blocks, chip="h100"),
        gm.quantize.plan(a, by="block", scale_dtype="float8_e8m0fnu", chip="h100"),
    ]

    def planned(spec):
        groups, factors = (spec(a), spec(b), spec(offsets)), (spec(x), spec(y))
        scales = (spec(rows.astype(exponents)), spec(blocks.astype(exponents)))
        yield gm.grouped_gemm.plan(*groups, chip="h100")
        yield gm.scaled_gemm.plan(*factors, *scales, chip="h100")
        yield gm.quantize.plan(groups[0], by="block", scale_dtype="float8_e8m0fnu", chip="h100")

    def meta(array):
        return torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device="meta")

    for spec in (meta, lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype)):
        assert [str(plan) for plan in planned(spec)] == [str(plan) for plan in wanted]


def test_c_in_any_layout_and_type():
    a, b = (torch.empty(K, K, dtype=torch.bfloat16, device="meta") for _ in "ab")
    plain = gm.gemm.plan(a, b, torch.empty_like(a), beta=1, chip="h200")
    for c in (torch.empty_like(a).T, torch.empty_like(a)[:1].expand(K, K), torch.empty_like(a, dtype=torch.float32)):
        plan = gm.gemm.plan(a, b, c, beta=1, chip="h200")
        assert (plain.rewrite, plan.kernel) == ("", plain.kernel)
        assert plan.rewrite.endswith("it is an input of the epilogue")
    a, b, c = torch.randn(24, 40), torch.randn(40, 16), torch.randn(16, 24)
    for addend in (c.T, c[:, :1].T.expand(24, 16), c.T.to(torch.float16)):
        found = gm.gemm(a, b, addend, beta=2.0, executor="vgpu")
        torch.testing.assert_close(found, torch.addmm(addend.float(), a, b, beta=2.0))
