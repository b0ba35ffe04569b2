"""The public functions on PyTorch tensors in host memory."""

from __future__ import annotations

import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError, DTypeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

FLOATS = ["float64", "float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_stay_in_the_library_and_on_the_device(dtype):
    a, b = torch.randn(3, 17, 33).to(getattr(torch, dtype)), torch.randn(33, 9).to(getattr(torch, dtype))
    got = gm.matmul(a, b)
    assert isinstance(got, torch.Tensor)
    assert got.dtype == a.dtype
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats(dtype):
    a, b = (torch.randint(-4, 5, (16, 16)).float() for _ in range(2))
    got = gm.matmul(a.to(getattr(torch, dtype)), b.to(getattr(torch, dtype)), out_dtype=torch.float32)
    assert torch.equal(got, a @ b)


def test_int8_strides_and_out():
    a = torch.randint(-128, 128, (20, 30), dtype=torch.int8).T
    out = torch.full((30, 30), 7, dtype=torch.int32)
    assert gm.gemm(a, a.T, out=out) is out
    assert torch.equal(out, (a.long() @ a.T.long()).int())


def test_transposes():
    x = torch.randn(2, 3, 5).to(torch.bfloat16)
    got = gm.matrix_transpose(x)
    assert got.is_contiguous()
    assert torch.equal(got, x.transpose(1, 2))
    assert torch.equal(gm.transpose(x), x.permute(2, 1, 0))


def test_refusals():
    a = torch.ones(3, 3)
    with pytest.raises(ArgumentError, match="requires grad"):
        gm.matmul(a.clone().requires_grad_(), a)
    with torch.no_grad():
        gm.matmul(a.clone().requires_grad_(), a)
    with pytest.raises(ArgumentError, match="a comes from torch and b from numpy"):
        gm.matmul(a, a.numpy())
    with pytest.raises(ArgumentError, match="sparse"):
        gm.matmul(a.to_sparse(), a)
    with pytest.raises(DTypeError, match="uint16"):
        gm.matmul(a, a, out_dtype="uint16")
    with pytest.raises(ArgumentError, match="meta"):
        gm.matmul(torch.ones(3, 3, device="meta"), torch.ones(3, 3, device="meta"))
    with pytest.raises(ArgumentError, match="conj"):
        gm.matmul(a.to(torch.complex64).conj(), a.to(torch.complex64))
