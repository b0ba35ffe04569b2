"""Linear layers of gemmule.torch with ever new activations on a GPU: what is queued without a plan, and its results."""

from __future__ import annotations

import pytest

# PyTorch says so of its own first product in a thread of autograd's.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")

# The reference of float64 is rounded as often as the result.
DTYPES = {"float64": 2**-49, "float32": 2**-20, "bfloat16": 2**-6}


@pytest.fixture
def unplanned(torch, monkeypatch):
    """Return what makes every call fail that is not found in the cache."""
    from gemmule.torch import column_sums, linear_cache

    def planned(*_, **__):
        raise AssertionError("the call was planned")

    def allow_no_more():
        monkeypatch.setattr(linear_cache, "compute", planned)
        monkeypatch.setattr(column_sums, "compute", planned)
        monkeypatch.setattr(linear_cache, "product_like", planned)

    linear_cache.forget()
    return allow_no_more


def layer_of(torch, dtype, bias, width=64):
    import gemmule.torch

    return gemmule.torch.Linear(width, 2 * width, bias, "cuda", getattr(torch, dtype))


def both(torch, layer, x, grad):
    """Return the result and the gradients of a layer, and those of PyTorch in float64."""
    given = [x.detach().requires_grad_(), *layer.parameters()]
    got = layer(given[0])
    wide = [one.detach().double().requires_grad_() for one in given]
    expected = torch.nn.functional.linear(*wide)
    return (
        (got, *torch.autograd.grad(got, given, grad)),
        (expected, *torch.autograd.grad(expected, wide, grad.double())),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(16,), (1, 33), (3, 5)], ids=str)
def test_new_activations_and_written_weights(torch, unplanned, dtype, bias, rows):
    layer = layer_of(torch, dtype, bias)
    kind, stream = getattr(torch, dtype), torch.cuda.Stream()
    for call in range(6):
        if call == 2:
            unplanned()
        if call == 4:
            with torch.no_grad():
                layer.weight.mul_(-2)
        x, grad = (torch.randn(*rows, width, device="cuda").to(kind) for width in (64, 128))
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream if call == 5 else torch.cuda.current_stream()):
            found = both(torch, layer, x, grad)
        torch.cuda.synchronize()
        for got, expected in zip(*found, strict=True):
            assert got.dtype == kind
            scale = expected.abs().max().item() + 12
            assert (got.double() - expected).abs().max().item() <= DTYPES[dtype] * scale
        # PyTorch warns where what accumulates a gradient lives on, of another stream than the next backward's.
        del found, got, expected


@pytest.mark.parametrize("state", ["no_grad", "inference_mode"])
def test_without_gradients(torch, unplanned, state):
    layer = layer_of(torch, "bfloat16", True)
    with getattr(torch, state)():
        for call in range(4):
            if call == 2:
                unplanned()
            x = torch.randn(2, 3, 64, device="cuda").bfloat16()
            got = layer(x)
            assert got.is_inference() == (state == "inference_mode")
            torch.testing.assert_close(
                got, torch.nn.functional.linear(x, layer.weight, layer.bias), rtol=0.02, atol=0.05
            )


def test_a_training_step_is_captured(torch, unplanned):
    layer = layer_of(torch, "bfloat16", True)
    x = torch.randn(2, 8, 64, device="cuda").bfloat16()
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())

    def step():
        layer.zero_grad()
        result = layer(x)
        result.square().mean().backward()
        return result

    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    unplanned()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    x.copy_(torch.randn(2, 8, 64, device="cuda"))
    with torch.no_grad():
        layer.weight.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    given = [one.detach().clone().requires_grad_() for one in layer.parameters()]
    expected = torch.nn.functional.linear(x, *given)
    torch.testing.assert_close(result, expected, rtol=0.02, atol=0.05)
    expected.square().mean().backward()
    for one, other in zip(layer.parameters(), given, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0.05, atol=0.01)
