"""Derivatives of gemmule's operators in PyTorch, on the CPU: gradients, tangents, and transforms of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

from torch.autograd import forward_ad  # noqa: E402

import gemmule.torch as gt  # noqa: E402
from gemmule.torch.product import as_factor, gemm  # noqa: E402
from support.double_tensors import doubles  # noqa: E402

#: PyTorch compiles its own tangents by what it deprecates.
own_warning = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")


CALLS = {
    "matmul": (gt.matmul, [(3, 5, 4), (4, 2)]),
    "matmul of batches": (gt.matmul, [(2, 1, 3, 4), (5, 4, 2)]),
    "matmul, b alone in the batch": (gt.matmul, [(3, 4), (5, 4, 2)]),
    "addmm": (lambda *x: gt.addmm(*x, beta=0.5, alpha=-1.5), [(4,), (3, 5), (5, 4)]),
    "addmm of a column": (gt.addmm, [(3, 1), (3, 5), (5, 4)]),
    "baddbmm": (lambda *x: gt.baddbmm(*x, beta=2, alpha=0.5), [(3, 4), (2, 3, 5), (2, 5, 4)]),
    "linear": (gt.linear, [(2, 3, 5), (4, 5), (4,)]),
    "linear of a vector": (gt.linear, [(5,), (4, 5), (4,)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name):
    function, shapes = CALLS[name]
    operands = doubles(*shapes)
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands)


@own_warning
@pytest.mark.parametrize("name", CALLS)
def test_tangents(name):
    function, shapes = CALLS[name]
    operands = doubles(*shapes)
    assert torch.autograd.gradcheck(
        function, operands, check_forward_ad=True, check_backward_ad=False, check_batched_forward_grad=True
    )
    # The tangent of a gradient.
    assert torch.autograd.gradgradcheck(function, operands, check_fwd_over_rev=True)


@own_warning
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("of", range(3))
def test_tangents_of_one_operand(of, grad):
    operands = doubles((4,), (3, 5), (5, 4), grad=grad)
    with forward_ad.dual_level():
        tangent = torch.ones_like(operands[of])
        operands[of] = forward_ad.make_dual(operands[of], tangent)
        got, expected = (
            forward_ad.unpack_dual(function(*operands, beta=0.5, alpha=-2)) for function in (gt.addmm, torch.addmm)
        )
        torch.testing.assert_close(tuple(got), tuple(expected))


@own_warning
@pytest.mark.parametrize(
    "transform",
    [
        "jvp",
        "jacfwd",
        "jacfwd of jacfwd",
        "jacrev",
        "jacrev of jacfwd",
        "hessian",
        "grad",
        "vmap of grad",
        "vmap of jvp",
    ],
)
def test_transforms(transform):
    f = torch.func

    def through(matmul):
        def function(a):
            return matmul(matmul(a, w).sin(), a[0]).cos()

        return {
            "jvp": lambda: f.jvp(function, (a,), (t,)),
            "jacfwd": lambda: f.jacfwd(function)(a),
            "jacfwd of jacfwd": lambda: f.jacfwd(f.jacfwd(function))(a),
            "jacrev": lambda: f.jacrev(function)(a),
            "jacrev of jacfwd": lambda: f.jacrev(f.jacfwd(function))(a),
            "hessian": lambda: f.hessian(lambda x: function(x).sum())(a),
            "grad": lambda: f.grad(lambda x: function(x).sum())(a),
            "vmap of grad": lambda: f.vmap(f.grad(lambda x: function(x).sum()))(torch.stack([a, t])),
            "vmap of jvp": lambda: f.vmap(lambda x: f.jvp(function, (a,), (x,)))(torch.stack([a, t])),
        }[transform]()

    a, t, w = doubles((2, 3), (2, 3), (3, 3), grad=False)
    torch.testing.assert_close(through(gt.matmul), through(torch.matmul))


@own_warning
def test_compiled_tangents():
    def of_torch_func(a, t, w):
        return torch.func.jvp(lambda x: gt.matmul(x, w).sin(), (a,), (t,))[1]

    def of_a_level(a, t, w):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(gt.matmul(forward_ad.make_dual(a, t), w).sin()).tangent

    torch._dynamo.reset()
    a, t, w = doubles((2, 3), (2, 3), (3, 3), grad=False)
    for function in (of_torch_func, of_a_level):
        compiled = torch.compile(function, backend="aot_eager")
        torch.testing.assert_close(compiled(a, t, w), (a @ w).cos() * (t @ w))


@own_warning
def test_tangents_of_narrow_types_and_another_type_of_output():
    a, b = (torch.randn(6, 6).to(torch.bfloat16) for _ in range(2))
    value, tangent = torch.func.jvp(
        lambda *x: gemm(*x, None, 1.0, 0.0, torch.float32, None), (a, b), (b, torch.ones(()).bfloat16().expand(6, 6))
    )
    assert (value.dtype, tangent.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(tangent, b.float() @ b.float() + a.float() @ torch.ones(6, 6), rtol=1e-5, atol=1e-5)


def test_beta_of_zero_gives_its_input_no_gradient():
    given, a, b = doubles((3, 4), (3, 5), (5, 4))
    (got,) = torch.autograd.grad(gt.addmm(given, a, b, beta=0).sum(), given)
    assert torch.equal(got, torch.zeros_like(given))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_narrow_types_have_their_type(dtype):
    x, weight, bias = (
        torch.randn(shape).to(getattr(torch, dtype)).requires_grad_() for shape in ((2, 5, 9), (7, 9), (7,))
    )
    got = gt.linear(x, weight, bias)
    got.backward(torch.ones_like(got))
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    torch.nn.functional.linear(*wide).sum().backward()
    for one, other in zip((x, weight, bias), wide, strict=True):
        assert one.grad.dtype == one.dtype
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=0.02, atol=0.05)


def test_gradients_lie_as_what_they_are_of():
    x, weight = doubles((2, 5, 9), (7, 9))
    for first, second in ((x, weight.mT), (weight, x.mT)):
        grads = torch.autograd.grad(gt.matmul(first, second).sum(), (x, weight))
        assert [grad.stride() for grad in grads] == [x.stride(), weight.stride()]


@pytest.mark.parametrize("name", CALLS)
def test_batched_gradients(name):
    """By the vmap of `is_grads_batched`, which is none of torch.func's."""
    function, shapes = CALLS[name]
    operands = doubles(*shapes)
    assert torch.autograd.gradcheck(function, operands, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, operands, check_batched_grad=True)
    result = function(*operands)
    weights = torch.randn(6, *result.shape, dtype=torch.float64)
    together = torch.autograd.grad(result, operands, weights, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(result, operands, one, retain_graph=True) for one in weights]
    for got, expected in zip(together, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(expected))


@own_warning
def test_vectorised_jacobians_and_hessians():
    functional = torch.autograd.functional
    x, w = doubles((3, 4), (4, 5), grad=False)

    def through(matmul):
        return lambda a, b: matmul(matmul(a, b).sin(), b.mT)

    for strategy in ("reverse-mode", "forward-mode"):
        got = functional.jacobian(through(gt.matmul), (x, w), vectorize=True, strategy=strategy)
        torch.testing.assert_close(got, functional.jacobian(through(torch.matmul), (x, w)))
    got, expected = (
        functional.hessian(
            lambda a, b, matmul=matmul: through(matmul)(a, b).sum(), (x, w), vectorize=matmul is gt.matmul
        )
        for matmul in (gt.matmul, torch.matmul)
    )
    torch.testing.assert_close(got, expected)


def test_the_vmap_of_batched_gradients_over_products():
    a, b = doubles((6, 3, 4), (4, 5), grad=False)
    got = torch._vmap_internals._vmap(lambda x: gt.matmul(x, b))(a)
    torch.testing.assert_close(got, a @ b)


@own_warning
@pytest.mark.parametrize("views", [(False, False), (True, False), (False, True)], ids=str)
def test_complex_products_have_derivatives(views):
    """Against finite differences, of lazy conjugates too."""
    a = torch.randn(2, 4, 3, dtype=torch.complex128, requires_grad=True)
    b = torch.randn(3, 5, dtype=torch.complex128, requires_grad=True)

    def product(x, y):
        return gt.matmul(x.conj() if views[0] else x, y.conj() if views[1] else y)

    assert torch.autograd.gradcheck(product, (a, b), check_forward_ad=True)
    assert torch.autograd.gradcheck(lambda x, y: gt.linear(x, y.mT), (a, b))
    torch.testing.assert_close(product(a, b), (a.conj() if views[0] else a) @ (b.conj() if views[1] else b))


def test_a_gradient_without_strides_is_copied_before_it_is_a_factor():
    """As that of a sum, which no kernel loads by TMA."""
    factor = as_factor(torch.ones((), dtype=torch.float64).expand(3, 4), torch.float64)
    assert factor.stride() == (4, 1)
    assert as_factor(factor, torch.float64) is factor
