"""Gradients of biases as products with a row of ones."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import gemmule.torch as gt  # noqa: E402
from gemmule.torch import column_sums  # noqa: E402
from support.fakes.linear_gpu import operands, seen  # noqa: E402

functional = torch.nn.functional


@pytest.mark.parametrize("shape", [(4, 16), (2, 4, 16)], ids=str)
def test_the_gradient_of_a_bias_as_a_product(gpu, monkeypatch, shape):
    monkeypatch.setattr(column_sums, "is_product", lambda grad: True)
    monkeypatch.setattr(column_sums, "cached_gemm", gpu.cached_gemm)
    _, weight, bias = operands(*shape)
    products = []
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64)
        result = gt.linear(x, weight, bias)
        grad = torch.randn_like(result)
        got, queued = seen(gpu, lambda r=result, g=grad: torch.autograd.grad(r, (weight, bias), g))
        products.append(queued)
        expected = torch.autograd.grad(functional.linear(x, weight, bias), (weight, bias), grad)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)
    assert products == [0, 2, 2]
    # Differentiated again it is a sum.
    (of_bias,) = torch.autograd.grad(gt.linear(x, weight, bias), bias, grad.requires_grad_(), create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(of_bias.sum(), grad)[0], torch.ones_like(grad))


def test_sums_are_over_all_dimensions_but_the_last(monkeypatch):
    grad = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    for as_product in (False, True):
        monkeypatch.setattr(column_sums, "is_product", lambda grad, found=as_product: found)
        torch.testing.assert_close(column_sums.column_sums(grad, by_product=True), grad.sum((0, 1, 2)))


def test_rows_of_ones_are_as_long_as_what_they_sum(monkeypatch):
    monkeypatch.setattr(column_sums, "_ones", {})
    for rows in (3, 5000, 17):
        one = torch.randn(rows, 8)
        assert torch.equal(column_sums.row_of_ones(one), torch.ones(1, rows))
    ((device, _),) = column_sums._ones
    assert (device, [len(row) for row in column_sums._ones[device, torch.float32]]) == (one.device, [4096, 8192])
    assert not column_sums.is_product(one.bfloat16())


def test_rows_of_ones_of_two_threads_are_appended_in_order_of_length(monkeypatch):
    known, results, threads, ones = {}, {}, [], torch.ones

    def request(rows):
        results[rows] = column_sums.row_of_ones(torch.zeros(rows, 8)).shape

    def made(length, **options):
        # While the short row is made, another thread needs a longer one.
        if not threads:
            threads.append(threading.Thread(target=request, args=(5000,)))
            threads[0].start()
            threads[0].join(0.2)
        return ones(length, **options)

    monkeypatch.setattr(column_sums, "_ones", known)
    monkeypatch.setattr(column_sums.torch, "ones", made)
    request(3)
    threads[0].join(30)
    assert results == {3: (1, 3), 5000: (1, 5000)}
    assert [len(row) for row in next(iter(known.values()))] == [4096, 8192]
