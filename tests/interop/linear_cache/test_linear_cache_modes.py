"""Linear layers called again under modes, autocast, transforms and traces, which see the operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import gemmule.torch as gt  # noqa: E402
from support.fakes.linear_gpu import operands, seen  # noqa: E402

functional = torch.nn.functional


def under_a_function_mode(call):
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        return call()


def under_a_dispatch_mode(call):
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        result = call()
    assert "gemmule.gemm.default" in names
    return result


def under_a_profiler(call):
    with torch.profiler.profile() as profiled:
        result = call()
    assert "gemmule::gemm" in {event.name for event in profiled.events()}
    return result


def with_tangents(call):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return call()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "state",
    [under_a_function_mode, under_a_dispatch_mode, under_a_profiler, with_tangents],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_whatever_sees_operators_is_let_see_them(gpu, state, grad):
    x, weight, bias = operands(4, 16)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            expected = gt.linear(x, weight, bias)
        assert gpu.queued == 2
        for _ in range(3):
            got, queued = seen(gpu, lambda: state(lambda: gt.linear(x, weight, bias)))
            assert queued == 0
            torch.testing.assert_close(got, expected)
        assert seen(gpu, lambda: gt.linear(x, weight, bias))[1] == 1


def test_autocast_decides_the_type(gpu):
    x, weight, bias = (one.detach().float() for one in operands(4, 16))
    for _ in range(3):
        assert gt.linear(x, weight, bias).dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            for _ in range(3):
                assert gt.linear(x, weight, bias).dtype == dtype
                # Also of what another autocast has made.
                assert gt.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).dtype == dtype
    for _ in range(3):
        assert gt.linear(x, weight, bias).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_transforms(gpu):
    x, weight, bias = operands(4, 16, grad=False)
    for _ in range(3):
        gt.linear(x, weight, bias)

    def loss(linear):
        return lambda w: linear(x, w, bias).sin().sum()

    before = gpu.queued
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.hessian):
        torch.testing.assert_close(transform(loss(gt.linear))(weight), transform(loss(functional.linear))(weight))
    many = torch.randn(3, 4, 16, dtype=torch.float64)
    got = torch.func.vmap(lambda one: gt.linear(one, weight, bias))(many)
    torch.testing.assert_close(got, functional.linear(many, weight, bias))
    assert gpu.queued == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
def test_traces_hold_the_operator(gpu):
    from torch.fx.experimental.proxy_tensor import make_fx

    layer = gt.Linear(16, 8, dtype=torch.float64).requires_grad_(False)
    x = torch.randn(4, 16, dtype=torch.float64)
    for _ in range(3):
        layer(x)
    before = gpu.queued
    for mode in ("real", "fake"):
        traced = make_fx(lambda *given: gt.linear(*given), tracing_mode=mode)(x, layer.weight, layer.bias)
        assert "gemmule.gemm" in traced.code
    for strict in (False, True):
        assert "gemmule.gemm" in torch.export.export(layer, (x,), strict=strict).graph_module.code
    assert "gemmule::gemm" in str(torch.jit.trace(layer, (x,), check_trace=False).inlined_graph)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))
    assert gpu.queued == before + 1


def test_subclasses_mean_what_they_mean(gpu):
    class Named(torch.Tensor):
        pass

    x, weight, bias = operands(4, 16, grad=False)
    for _ in range(3):
        gt.linear(x, weight, bias)
    for given in ((x.as_subclass(Named), weight, bias), (x, weight.detach().as_subclass(Named), bias)):
        got, queued = seen(gpu, lambda given=given: gt.linear(*given))
        assert (type(got), queued) == (Named, 0)
    got, queued = seen(gpu, lambda: gt.linear(x, weight, bias.detach().as_subclass(Named)))
    assert (type(got), queued) == (Named, 0)


def test_a_backward_is_seen_too(gpu):
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Heard(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    x, weight, bias = operands(4, 16)
    for state in (Heard, torch.profiler.profile):
        for _ in range(3):
            result = gt.linear(x, weight, bias)
            torch.autograd.grad(result, weight, torch.ones_like(result))
        result = gt.linear(x, weight, bias)
        with state() as found:
            _, queued = seen(gpu, lambda result=result: torch.autograd.grad(result, weight, torch.ones_like(result)))
        assert queued == 0
        assert (
            "gemmule.gemm.default" in names if state is Heard else "gemmule::gemm" in {e.name for e in found.events()}
        )


def test_calls_that_autocast_has_cast_are_cached(gpu):
    x, weight, bias = operands(4, 16)
    x.requires_grad_()
    grad = torch.randn(4, 8, dtype=torch.float64)

    def both():
        # Autocast leaves float64 as it is, which the stand-in can multiply.
        with torch.autocast("cpu", torch.bfloat16):
            got, expected = gt.linear(x, weight, bias), functional.linear(x, weight, bias)
        torch.testing.assert_close(got, expected)
        pairs = [torch.autograd.grad(y, (x, weight, bias), grad) for y in (got, expected)]
        for one, other in zip(*pairs, strict=True):
            torch.testing.assert_close(one, other)

    assert [seen(gpu, both)[1] for _ in range(3)] == [0, 3, 3]
    assert seen(gpu, lambda: gt.linear(x, weight, bias))[1] == 0
