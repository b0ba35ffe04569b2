"""gemmule.torch on a GPU: results, backward, streams, captured graphs and compiled functions."""

from __future__ import annotations

import pytest

import gemmule as gm
from support.gpu.normal_tensors import DTYPES, assert_close, normal


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(256, 512, 384), (77, 130, 61), (1, 40, 33)])
def test_addmm_and_baddbmm(torch, gt, dtype, m, n, k):
    a, b = normal(torch, dtype, (3, m, k), (3, k, n))
    for shape in ((m, n), (1, n), (m, 1), (n,), ()):
        (given,) = normal(torch, dtype, shape)
        got = gt.addmm(given, a[0], b[0], beta=0.5, alpha=-2)
        assert_close(torch, got, -2 * (a[0].double() @ b[0].double()) + 0.5 * given.double(), dtype, k)
        got = gt.addmm(given, a[0], b[0])
        assert_close(torch, got, a[0].double() @ b[0].double() + given.double(), dtype, k)
    (given,) = normal(torch, dtype, (3, m, n))
    before = given.clone()
    assert_close(torch, gt.baddbmm(given, a, b), torch.baddbmm(given.double(), a.double(), b.double()), dtype, k)
    assert torch.equal(given, before)
    poison = torch.full_like(given, torch.nan)
    assert_close(torch, gt.baddbmm(poison, a, b, beta=0), a.double() @ b.double(), dtype, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(2, 5, 40), (3, 33), (130,), ()], ids=str)
def test_linear_forward_and_backward(torch, gt, dtype, rows):
    x, weight, bias = normal(torch, dtype, (*rows, 96), (136, 96), (136,))
    operands = [t.requires_grad_() for t in (x, weight, bias)]
    got = gt.linear(*operands)
    wide = [t.detach().double().requires_grad_() for t in operands]
    expected = torch.nn.functional.linear(*wide)
    assert_close(torch, got.detach(), expected.detach(), dtype, 96)
    (grad,) = normal(torch, dtype, got.shape)
    got.backward(grad)
    expected.backward(grad.double())
    for one, other, k in zip(operands, wide, (136, 400, 400), strict=True):
        assert one.grad.dtype == one.dtype
        assert_close(torch, one.grad, other.grad, dtype, k)


def test_rows_over_several_dimensions_are_one_product(torch):
    x, weight = normal(torch, "bfloat16", (4, 33, 256), (512, 256))
    plan = gm.matmul.plan(x, weight.mT)
    assert (plan.problem.m, plan.problem.batch) == (4 * 33, ())
    assert plan.kernel == gm.matmul.plan(x.flatten(0, 1), weight.mT).kernel
    assert_close(torch, plan.execute(), x.double() @ weight.double().mT, "bfloat16", 256)
    parts = x[:, :32]  # whose rows do not follow from one matrix to the next
    assert_close(torch, gm.matmul(parts, weight.mT), parts.double() @ weight.double().mT, "bfloat16", 256)


@pytest.mark.parametrize("precision", [None, "tf32"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bias_of_every_call(torch, gt, dtype, precision):
    """Calls that are alike share what was decided, but neither data, addresses nor alignment."""
    if dtype == "bfloat16" and precision:
        pytest.skip("TF32 is of float32")
    x, weight = normal(torch, dtype, (3, 50, 64), (72, 64))
    (long,) = normal(torch, dtype, (300,))
    exact = x.double() @ weight.double().mT
    near = "bfloat16" if precision else dtype
    for begin in (0, 8, 1, 72, 0, 3, 8):
        bias = long[begin : begin + 72]
        got = gt.linear(x, weight, bias, precision=precision)
        assert_close(torch, got, exact + bias.double(), near, 64)
        column = long[begin : begin + 50].unsqueeze(-1)
        got = gt.addmm(column, x[1], weight.mT, precision=precision)
        assert_close(torch, got, exact[1] + column.double(), near, 64)


def test_second_derivatives(torch, gt):
    operands = [t.requires_grad_() for t in normal(torch, "float64", (2, 3, 5), (4, 5), (4,))]
    assert torch.autograd.gradcheck(gt.linear, operands)
    assert torch.autograd.gradgradcheck(gt.linear, operands)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_operator_is_what_it_says(torch, gt, dtype):
    from gemmule.torch.product import gemm

    a, b, c = (t.requires_grad_() for t in normal(torch, dtype, (2, 16, 32), (32, 8), (8,)))
    torch.library.opcheck(gemm, (a, b, c, 1.5, 0.5, None, None))


def test_tf32_is_taken_where_it_is_asked_for(torch, gt):
    x, weight = normal(torch, "float32", (256, 256), (256, 256))
    exact = x.double() @ weight.double().mT
    ieee = (gt.linear(x, weight) - exact).abs().max()
    tf32 = (gt.linear(x, weight, precision="tf32") - exact).abs().max()
    assert ieee < 1e-4 < tf32 < 0.2


def test_autocast(torch, gt):
    x, weight, bias = normal(torch, "float32", (3, 50, 64), (72, 64), (72,))
    weight.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        got = gt.linear(x, weight, bias)
        assert got.dtype == torch.bfloat16
    got.sum().backward()
    assert weight.grad.dtype == torch.float32
    expected = torch.nn.functional.linear(x.double(), weight.detach().double(), bias.double())
    assert_close(torch, got.detach(), expected, "bfloat16", 64)


def test_no_gradients_to_hold_and_inference(torch, gt):
    x, weight = normal(torch, "bfloat16", (32, 64), (72, 64))
    weight.requires_grad_()
    with torch.inference_mode():
        got = gt.linear(x, weight)
    assert not got.requires_grad
    assert_close(torch, got, x.double() @ weight.detach().double().mT, "bfloat16", 64)


# Forward mode compiles scripts of PyTorch's own.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_batched_gradients(torch, gt):
    """The vmap of these is none of torch.func's, and runs on the threads of autograd for the GPU."""
    x, weight = (t.requires_grad_() for t in normal(torch, "float64", (2, 5, 33), (24, 33)))
    result = gt.linear(x, weight)
    (weights,) = normal(torch, "float64", (4, *result.shape))
    together = torch.autograd.grad(result, (x, weight), weights, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(result, (x, weight), one, retain_graph=True) for one in weights]
    for got, expected in zip(together, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(expected))
    a, b = x.detach()[0], weight.detach().mT
    functional = torch.autograd.functional
    for strategy in ("reverse-mode", "forward-mode"):
        got = functional.jacobian(lambda a, b: gt.matmul(a, b).sin(), (a, b), vectorize=True, strategy=strategy)
        expected = functional.jacobian(lambda a, b: torch.matmul(a, b).sin(), (a, b))
        torch.testing.assert_close(got, expected)


def test_operations_are_counted(torch, gt):
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    for function in (gt.linear, torch.nn.functional.linear):
        x, weight = (t.requires_grad_() for t in normal(torch, "bfloat16", (2, 64, 128), (256, 128)))
        # The second call repeats what the first one has decided.
        for _ in range(2):
            with FlopCounterMode(display=False) as counted:
                function(x, weight).sum().backward()
        counts.append(counted.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 128 * 128 * 256


@pytest.mark.parametrize("dtype", DTYPES)
def test_negated_views(torch, gt, dtype):
    a, b = normal(torch, dtype, (40, 72), (72, 48))
    for _ in range(3):
        got = gt.matmul(torch._neg_view(a), b)
        assert_close(torch, got, -(a.double() @ b.double()), dtype, 72)
        got = gt.addmm(torch._neg_view(got), a, b)
        assert_close(torch, got, 2 * (a.double() @ b.double()), dtype, 72)


def test_negated_views_on_a_stream_that_is_named_and_in_a_plan(torch):
    a, b = normal(torch, "float32", (512, 512), (512, 512))
    lazy, stream = torch._neg_view(a), torch.cuda.Stream()
    plan = gm.matmul.plan(lazy, b)
    for _ in range(3):
        a.normal_()
        expected = -(a.double() @ b.double())
        torch.cuda.synchronize()
        on_stream = gm.matmul(lazy, b, stream=stream)
        with torch.cuda.stream(stream):
            in_a_plan = plan.execute()
        torch.cuda.synchronize()
        for got in (on_stream, in_a_plan, plan.execute()):
            assert_close(torch, got, expected, "float32", 512)


def test_autograd_hears_of_every_write_to_out(torch):
    a, b = normal(torch, "float32", (64, 64), (64, 64))
    out = torch.empty_like(a)
    for write in (
        lambda: gm.matmul(a, b, out=out),
        lambda: gm.gemm(a, b, out, alpha=2.0, beta=1.0, out=out),
        lambda: gm.matrix_transpose(a, out=out),
    ):
        # Planned, then repeated, then found by the arrays themselves.
        for _ in range(5):
            before = out._version
            write()
            assert out._version > before


def test_autograd_hears_of_every_write_to_an_absolute_maximum(torch):
    a, b = normal(torch, "float32", (64, 64), (64, 64))
    largest = torch.zeros(1, device="cuda")
    for _ in range(5):
        before = largest._version
        gm.gemm(a, b, epilogue="relu", absmax=largest)
        assert largest._version > before


def test_parameters_can_be_freed_and_gathered(torch):
    """As FSDP does with the storage of what it has gathered."""
    x, whole = normal(torch, "float32", (32, 64), (64, 48))
    weight = whole.clone()
    for _ in range(4):
        assert_close(torch, gm.matmul(x, weight), x.double() @ whole.double(), "float32", 64)
        size = weight.untyped_storage().size()
        weight.untyped_storage().resize_(0)
        weight.untyped_storage().resize_(size)
        weight.copy_(whole)
    plan = gm.matmul.plan(x, weight)
    weight.untyped_storage().resize_(0)
    with pytest.raises(gm.ArgumentError, match="the storage of b was freed or moved"):
        plan.execute()


def test_scalars_on_the_gpu_are_not_waited_for(torch, gt):
    a, b = normal(torch, "float32", (64, 64), (64, 64))
    two = torch.tensor(2.0, device="cuda")
    for call in (
        lambda alpha: gm.gemm(a, b, alpha=alpha),
        lambda alpha: gt.addmm(a, a, b, alpha=alpha, beta=0),
    ):
        with pytest.raises(gm.ArgumentError, match=r"alpha is on GPU 0, and reading it would wait.*alpha.item\(\)"):
            call(two)
        for alpha in (two.item(), two.cpu()):
            assert_close(torch, call(alpha), 2 * (a.double() @ b.double()), "float32", 64)
