"""Gradients of linear layers called again: what is queued without a plan, and what is saved."""

from __future__ import annotations

import pytest

from gemmule.core.errors import ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import gemmule.torch as gt  # noqa: E402
from support.fakes.linear_gpu import operands, seen  # noqa: E402

functional = torch.nn.functional


@pytest.mark.parametrize("needed", ["x", "weight", "bias", "x weight", "weight bias", "x bias", "x weight bias"])
@pytest.mark.parametrize("shape", [(4, 16), (2, 4, 16)], ids=str)
def test_one_call_makes_the_products_of_a_backward(gpu, needed, shape):
    needed = needed.split()
    for call in range(3):
        given = dict(zip(("x", "weight", "bias"), operands(*shape, grad=False), strict=True))
        for name in needed:
            given[name].requires_grad_()
        result = gt.linear(*given.values())
        grad = torch.randn_like(result)
        got, queued = seen(gpu, lambda r=result, g=grad, i=given: torch.autograd.grad(r, [i[n] for n in needed], g))
        expected = torch.autograd.grad(functional.linear(*given.values()), [given[name] for name in needed], grad)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
        assert queued == (len({"x", "weight"} & {*needed}) if call else 0)


def test_only_some_gradients_are_asked_for(gpu):
    x, weight, bias = operands(4, 16)
    x.requires_grad_()
    for _ in range(3):
        for of in (x, weight, bias):
            (got,) = torch.autograd.grad(gt.linear(x, weight, bias).sin().sum(), of)
            (expected,) = torch.autograd.grad(functional.linear(x, weight, bias).sin().sum(), of)
            torch.testing.assert_close(got, expected)


def test_second_derivatives_and_batched_gradients(gpu):
    x, weight, bias = operands(3, 16, out=2)
    x.requires_grad_()
    for _ in range(3):
        gt.linear(x, weight, bias).sin().sum().backward()
    given = (x, weight.detach().requires_grad_(), bias.detach().requires_grad_())
    assert torch.autograd.gradcheck(gt.linear, given, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(gt.linear, given)
    assert gpu.queued


def test_a_backward_that_makes_a_graph_is_planned(gpu):
    x, weight, bias = operands(3, 16, out=2)
    x.requires_grad_()
    grad = torch.randn(3, 2, dtype=torch.float64)
    for _ in range(3):
        torch.autograd.grad(gt.linear(x, weight, bias), (x, weight), grad)
    seconds = []
    for linear in (gt.linear, functional.linear):
        of_x, of_weight = torch.autograd.grad(linear(x, weight, bias), (x, weight), grad, create_graph=True)
        seconds.append(torch.autograd.grad(of_x.sin().sum() + of_weight.cos().sum(), (x, weight)))
    for one, other in zip(*seconds, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_saved_is_what_is_needed(gpu):
    for of_x in (False, True):
        for of_weight in (False, True):
            saved = []
            for _ in range(3):
                x, weight, bias = operands(4, 16, grad=False)
                x.requires_grad_(of_x)
                weight.requires_grad_(of_weight)
                bias.requires_grad_()
                found = []
                with torch.autograd.graph.saved_tensors_hooks(lambda x, found=found: found.append(x) or x, lambda x: x):
                    gt.linear(x, weight, bias)
                saved.append([tuple(one.shape) for one in found])
            assert saved == [[(4, 16)] * of_weight + [(8, 16)] * of_x] * 3


def test_a_weight_that_gets_other_memory_before_the_backward(gpu):
    for change in (lambda w: setattr(w, "data", torch.zeros_like(w)), lambda w: setattr(w, "data", w.data.half())):
        for _ in range(3):
            x, weight, bias = operands(4, 16)
            x.requires_grad_()
            expected = torch.autograd.grad(torch.nn.functional.linear(x, weight, bias).sum(), x)
            result = gt.linear(x, weight, bias)
            change(weight)
            torch.testing.assert_close(torch.autograd.grad(result.sum(), x), expected)


@pytest.mark.parametrize("kind", ["leaf", "computed", "other memory"])
def test_a_second_derivative_is_of_the_weight_that_the_forward_read(gpu, kind):
    for _ in range(3):
        x, weight, _ = operands(4, 16, bias=False)
        x.requires_grad_()
        grad = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
        seconds = []
        for linear in (gt.linear, functional.linear):
            leaf = torch.nn.Parameter(weight.detach().clone())
            result = linear(x, leaf.sin() if kind == "computed" else leaf)
            if kind == "other memory":
                leaf.data = torch.zeros_like(leaf)
            (first,) = torch.autograd.grad(result, x, grad, create_graph=True)
            seconds.append((first, *torch.autograd.grad(first.sin().sum(), (leaf, grad))))
        for one, other in zip(*seconds, strict=True):
            torch.testing.assert_close(one, other)


def test_a_saved_tensor_that_is_written_is_refused(gpu):
    for _ in range(3):
        x, weight, bias = operands(4, 16)
        result = gt.linear(x, weight, bias)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_activation_checkpoints(gpu):
    from torch.utils.checkpoint import checkpoint

    _, weight, bias = operands(4, 16)
    for reentrant in (False, True):
        for _ in range(3):
            x = torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
            # The first forward is planned and the second one, of the backward, is not.
            checkpoint(lambda x: gt.linear(x, weight, bias).sin(), x, use_reentrant=reentrant).sum().backward()
            expected = torch.autograd.grad(functional.linear(x, weight, bias).sin().sum(), x)[0]
            torch.testing.assert_close(x.grad, expected)
    assert gpu.queued


LYING = {
    "rows of a batch apart": (lambda x: x[:, :3], lambda w: w),
    "columns apart": (lambda x: x.repeat_interleave(2, -1)[..., ::2], lambda w: w),
    "input in columns": (lambda x: x.mT.contiguous().mT, lambda w: w),
    "weight in columns": (lambda x: x, lambda w: w.T.contiguous().T),
    "both": (lambda x: x.mT.contiguous().mT, lambda w: w.T.contiguous().T),
    "a batch that is repeated": (lambda x: x[:1].expand(2, 4, 16), lambda w: w),
}


@pytest.mark.parametrize("name", LYING)
def test_operands_that_lie_otherwise(gpu, name):
    of_x, of_weight = LYING[name]
    for _ in range(4):
        x, weight, bias = operands(2, 4, 16, grad=False)
        given = of_x(x).requires_grad_(), of_weight(weight.detach()).requires_grad_(), bias.requires_grad_()
        got, expected = gt.linear(*given), functional.linear(*given)
        torch.testing.assert_close(got, expected)
        for grad in (torch.randn_like(got), torch.randn(2, 8, 4, dtype=torch.float64).mT[:, : got.shape[1]]):
            pairs = [torch.autograd.grad(y, given, grad, retain_graph=True) for y in (got, expected)]
            for one, other in zip(*pairs, strict=True):
                torch.testing.assert_close(one, other)
    assert gpu.queued


@pytest.mark.parametrize("columns", [True, False])
def test_gradients_lie_as_their_parameters(gpu, columns):
    for needed in ("x", "weight", "x weight"):
        for _ in range(3):
            x, weight, _ = operands(4, 16, bias=False, grad=False)
            given = {"x": x.mT.contiguous().mT if columns else x, "weight": weight.detach()}
            given["weight"] = given["weight"].T.contiguous().T if columns else given["weight"]
            for one in needed.split():
                given[one].requires_grad_()
            result = gt.linear(*given.values())
            asked = [given[one] for one in needed.split()]
            # Not by backward(), which copies a gradient that lies otherwise.
            for got, of in zip(torch.autograd.grad(result, asked, torch.randn_like(result)), asked, strict=True):
                assert got.stride() == of.stride()


def test_a_backward_whose_addresses_need_a_plan(gpu):
    weight = torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        x, grad = (torch.randn(8, 8, dtype=torch.float64, requires_grad=of) for of in (True, False))
        torch.autograd.grad(gt.linear(x, weight), (x, weight), grad)
    unaligned = torch.zeros(65, dtype=torch.float64)[1:].view(8, 8).copy_(grad)
    for one in (unaligned, x.detach(), weight.detach()):
        ours, theirs = gt.linear(x, weight), functional.linear(x, weight)
        got, queued = seen(gpu, lambda y=ours, g=one: torch.autograd.grad(y, (x, weight), g))
        assert queued == 0
        for found, expected in zip(got, torch.autograd.grad(theirs, (x, weight), one), strict=True):
            torch.testing.assert_close(found, expected)
    result = gt.linear(x, weight)
    x.untyped_storage().resize_(0)
    before = gpu.queued
    with pytest.raises((RuntimeError, ShapeError, ValueError)):
        torch.autograd.grad(result, weight, grad)
    assert gpu.queued == before


def test_a_result_that_nothing_flows_back_to_has_no_gradients(gpu):
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    for _ in range(3):
        x, weight, bias = operands(4, 16)
        Cut.apply(gt.linear(x, weight, bias)).sum().backward()
        assert weight.grad is bias.grad is None


@pytest.mark.parametrize("shared", ["x", "weight"])
def test_a_syrk_plan_is_not_cached_for_other_gradients(gpu, shared):
    for call in range(4):
        given = {name: torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for name in ("x", "weight")}
        result = gt.linear(*given.values())
        # The first gradient shares its memory with a factor.
        grad = torch.randn(8, 8, dtype=torch.float64) if call else given[shared].detach()
        got, queued = seen(gpu, lambda r=result, g=grad, i=given: torch.autograd.grad(r, [*i.values()], g))
        assert queued == (2 if call > 1 else 0)
        torch.testing.assert_close(got, (grad @ given["weight"], grad.mT @ given["x"]))
