"""The reference of float64 products in the random campaign, against exact fractions."""

from __future__ import annotations

import types
from fractions import Fraction

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
from bounded_product import sliced_product
from expected import verdict


@pytest.mark.parametrize(("shape", "spread"), [((3, 40, 5), 0), ((2, 7, 3), 3), ((4, 2, 4), 40), ((1, 129, 2), 12)])
def test_it_is_as_exact_as_a_float64_can_be(shape, spread):
    m, k, n = shape
    generator = torch.Generator().manual_seed(k)
    a, b = (
        torch.randn(s, generator=generator, dtype=torch.float64)
        * torch.exp(spread * torch.randn(s, generator=generator, dtype=torch.float64))
        for s in ((m, k), (k, n))
    )
    got = sliced_product(a, b)
    for i in range(m):
        for j in range(n):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)]
            error = abs(Fraction(float(got[i, j])) - sum(terms))
            # One rounding of the result, and far less of the magnitudes; but of numbers of very different sizes.
            least = Fraction(2) ** -53
            magnitudes = sum(map(abs, terms))
            slack = k if spread > 3 else Fraction(2) ** -8
            assert error <= least * abs(sum(terms)) * Fraction(1001, 1000) + slack * least * magnitudes


def test_small_numbers_that_meet_no_large_ones_count():
    a = torch.tensor([[1.0, 1e-41]], dtype=torch.float64)
    b = torch.tensor([[0.0, 1.0], [3.0, 1e-30]], dtype=torch.float64)
    assert torch.equal(sliced_product(a, b), torch.matmul(a, b))


def test_vectors_and_batches():
    a, b = torch.arange(6, dtype=torch.float64).reshape(2, 3), torch.ones(3, dtype=torch.float64)
    assert torch.equal(sliced_product(a, b), torch.tensor([3.0, 12.0], dtype=torch.float64))
    assert torch.equal(sliced_product(b, a.T), torch.tensor([3.0, 12.0], dtype=torch.float64))
    many = torch.randn((2, 3, 4), dtype=torch.float64)
    torch.testing.assert_close(sliced_product(many, many.mT), many @ many.mT)


@pytest.mark.parametrize("out", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_infinity_times_about_0_may_be_anything_of_that_size(out):
    """The exact sum is 0, the computed one is not: NaN is expected, an infinity found, or the largest number."""
    problem = types.SimpleNamespace(dtypes={"out": out}, operation="gemm")
    dtype = getattr(torch, out)
    most = torch.finfo(dtype).max if out.startswith("float8") else float("inf")
    got = torch.tensor([most, -most, 1.0], dtype=torch.float64).to(dtype)
    nan = torch.full((3,), float("nan"), dtype=torch.float64)
    wrong, _ = verdict(problem, got, nan, torch.full_like(nan, float("inf"))).tolist()
    # A finite number in between is no product with infinity.
    assert wrong == 1
