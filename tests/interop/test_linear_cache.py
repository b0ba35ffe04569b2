"""Linear layers called again with new activations: what is queued without a plan, and what is not.

A stand-in for the GPU multiplies in host memory, at the addresses that it is given.
"""

from __future__ import annotations

import copy
import ctypes
import pickle
import threading

import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import gemmule.torch as gt  # noqa: E402
from gemmule.dispatch.choices.choice_cache import clear_choices  # noqa: E402
from gemmule.torch import column_sums, linear_cache, linear_calls  # noqa: E402

functional = torch.nn.functional


def memory(address, x):
    """Return what lies at an address as a tensor of that kind would."""
    dtype = np.dtype(str(x.dtype).removeprefix("torch."))
    span = sum((extent - 1) * stride for extent, stride in zip(x.shape, x.stride(), strict=True)) + 1
    buffer = (ctypes.c_char * (span * dtype.itemsize)).from_address(address)
    return np.ndarray(tuple(x.shape), dtype, buffer, 0, tuple(stride * dtype.itemsize for stride in x.stride()))


class Gpu:
    """Counts the products that it queues."""

    def __init__(self):
        self.queued = 0

    def cached_gemm(self, a, b, c=None, *, beta=0.0, out=None, bias=None, precision=None):
        """Stand in for the function of that name."""
        if torch._C._len_torch_dispatch_stack():
            return None
        # A bias, whose rows are all the same one.
        rows = () if c is None else zip(c.shape[:-1], c.stride()[:-1], strict=True)
        assert all(extent == 1 or not stride for extent, stride in rows)
        assert beta == (c is not None)
        kinds = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in (a, b, c, bias) if x is not None]
        result = torch.empty(torch.matmul(a, b).shape, dtype=a.dtype)
        syrk = a.data_ptr() == b.data_ptr()

        def queue(addresses, stream):
            assert stream == 7
            self.queued += 1
            if syrk:
                # A SYRK kernel reads A alone.
                addresses = (addresses[0], addresses[0], *addresses[2:])
            *given, at = (memory(*pair) for pair in zip(addresses, (*kinds, result), strict=True))
            at[...] = given[0] @ given[1] + (given[2] if len(given) > 2 else 0)

        return queue


@pytest.fixture(params=["bias", "c"])
def gpu(monkeypatch, request):
    stand_in = Gpu()
    monkeypatch.setattr(linear_cache, "cached_gemm", stand_in.cached_gemm)
    monkeypatch.setattr(linear_calls, "raw_stream", lambda device: 7)
    # What PyTorch allocates on the host is aligned to 64 bytes.
    monkeypatch.setattr(linear_calls, "LOW", 63)
    monkeypatch.setattr(linear_cache, "bias_role", lambda *_: request.param)
    linear_cache.forget()
    yield stand_in
    linear_cache.forget()


def operands(*shape, out=8, bias=True, grad=True):
    x = torch.randn(shape, dtype=torch.float64)
    weight, addend = torch.randn(out, shape[-1], dtype=torch.float64), torch.randn(out, dtype=torch.float64)
    for one in (weight, addend):
        one.requires_grad_(grad)
    return x, torch.nn.Parameter(weight, grad), torch.nn.Parameter(addend, grad) if bias else None


def seen(gpu, function):
    """Return what a function returns, and how many products were queued meanwhile."""
    before = gpu.queued
    result = function()
    return result, gpu.queued - before


STATES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.mark.parametrize("shape", [(4, 16), (2, 4, 16), (2, 3, 4, 16)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_new_activations_are_queued_without_a_plan(gpu, shape, bias, state):
    _, weight, addend = operands(*shape, bias=bias)
    with STATES[state]():
        for call in range(4):
            x = torch.randn(shape, dtype=torch.float64)
            got, queued = seen(gpu, lambda x=x: gt.linear(x, weight, addend))
            torch.testing.assert_close(got, functional.linear(x, weight, addend))
            assert queued == (call > 0)
            assert got.is_inference() == (state == "inference_mode")
            assert got.requires_grad == (state == "grad")


@pytest.fixture
def launched(gpu, monkeypatch):
    """How products are launched: ``"overlapping"`` or ``"serial"``, in order."""
    found = []

    def serial_queue(queue):
        def serial(addresses, stream):
            found.append("serial")
            queue(addresses, 7)

        return serial

    made = gpu.cached_gemm

    def cached_gemm(*arguments, **options):
        queue = made(*arguments, **options)

        def overlapping(addresses, stream):
            found.append("overlapping")
            queue(addresses, 7)

        overlapping.inner = queue
        return overlapping

    monkeypatch.setattr(linear_cache, "cached_gemm", cached_gemm)
    monkeypatch.setattr(linear_cache, "serial_queue", lambda queue: serial_queue(queue.inner))
    # The input of another test may have been where this one's is.
    monkeypatch.setattr(linear_calls, "_last", [0, 0])
    return found


def test_layers_of_one_input_overlap_and_others_are_launched_in_order(launched, monkeypatch):
    streams = [7]
    monkeypatch.setattr(linear_calls, "raw_stream", lambda device: streams[0])
    layers = [operands(4, 16, bias=False, grad=False)[1] for _ in range(3)]
    first, second = (torch.randn(4, 16, dtype=torch.float64) for _ in range(2))
    gt.linear(first, layers[0])
    launched.clear()
    for x in (first, second):
        for weight in layers:
            torch.testing.assert_close(gt.linear(x, weight), functional.linear(x, weight))
    streams[0] = 8
    gt.linear(second, layers[0])
    assert launched == ["serial", "overlapping", "overlapping"] * 2 + ["serial"]


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


def replaced(layer):
    layer.weight = torch.nn.Parameter(torch.randn_like(layer.weight))


def loaded(layer):
    layer.load_state_dict({name: torch.randn_like(x) for name, x in layer.state_dict().items()})


def stepped(layer):
    layer(torch.randn(4, 16, dtype=torch.float64)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()


def other_data(layer):
    layer.weight.data = torch.randn_like(layer.weight.data)


def transposed_data(layer):
    layer.weight.data = torch.randn(16, 8, dtype=torch.float64).T


def other_type(layer):
    layer.to(torch.float32)


def tied(layer):
    other = gt.Linear(16, 8, dtype=torch.float64)
    layer.weight = other.weight
    with torch.no_grad():
        other.weight.mul_(3)


def frozen(layer):
    layer.requires_grad_(False)


def parametrized(layer):
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())


def without_a_bias(layer):
    layer.bias = None


def resharded(layer):
    """As FSDP frees and fills what a parameter lies in."""
    whole = layer.weight.detach().clone()
    storage = layer.weight.untyped_storage()
    size = storage.size()
    storage.resize_(0)
    storage.resize_(size)
    layer.weight.data.copy_(whole)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        replaced,
        loaded,
        stepped,
        other_data,
        transposed_data,
        other_type,
        tied,
        frozen,
        parametrized,
        without_a_bias,
        resharded,
    ],
)
def test_changes_of_parameters_are_seen(gpu, change, grad):
    torch.manual_seed(0)
    layer = gt.Linear(16, 8, dtype=torch.float64)

    def both():
        x = torch.randn(4, 16, dtype=layer.weight.dtype)
        got, expected = layer(x), functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(got, expected)
        if got.requires_grad:
            for one, other in zip(
                *(torch.autograd.grad(y.sin().sum(), [*layer.parameters()]) for y in (got, expected)), strict=True
            ):
                torch.testing.assert_close(one, other)

    with torch.set_grad_enabled(grad):
        for _ in range(3):
            both()
        with torch.enable_grad():
            change(layer)
        for _ in range(3):
            both()
        assert seen(gpu, both)[1] >= 1


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


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x, w, b: gt.linear(x.float(), w, b), DTypeError, "input is float32 and weight is float64"),
        (lambda x, w, b: gt.linear(x, w.float()), DTypeError, "input is float64 and weight is float32"),
        (lambda x, w, b: gt.linear(x[:, :3], w), ShapeError, "input has shape .4, 3. and weight .8, 16.; linear takes"),
        (lambda x, w, b: gt.linear(x, w, b[:3]), ShapeError, r"bias has shape \(3,\)"),
        (lambda x, w, b: gt.linear(x, w, b.float()), DTypeError, "bias is float32"),
        (lambda x, w, b: gt.linear(x, w[None], b), ShapeError, "out_features, in_features"),
        (lambda x, w, b: gt.linear(x, w, precision="tf32"), DTypeError, "tf32"),
        (lambda x, w, b: gt.linear(x, w, precision=[]), ArgumentError, "is not known"),
    ],
)
def test_refusals_are_those_of_a_first_call(gpu, call, error, says):
    given = operands(4, 16, grad=False)
    for bias in (given[2], None):
        for _ in range(3):
            gt.linear(*given[:2], bias)
    with pytest.raises(error, match=says):
        call(*given)


def test_unaligned_and_freed_memory_is_planned(gpu):
    _, weight, bias = operands(4, 16, grad=False)
    for _ in range(3):
        gt.linear(torch.randn(4, 16, dtype=torch.float64), weight, bias)
    for place in range(3):
        given = [torch.randn(4, 16, dtype=torch.float64), weight, bias]
        moved = torch.zeros(given[place].numel() + 1, dtype=torch.float64)[1:].view(given[place].shape)
        moved.copy_(given[place].detach())
        given[place] = moved if place == 0 else torch.nn.Parameter(moved, requires_grad=False)
        got, queued = seen(gpu, lambda given=given: gt.linear(*given))
        torch.testing.assert_close(got, functional.linear(*given))
        assert queued == 0
    linear_cache.forget()
    unaligned = torch.zeros(65, dtype=torch.float64)[1:].view(4, 16)
    for _ in range(2 * linear_cache.MOST_LOOKS):
        gt.linear(unaligned, weight, bias)
    x = torch.randn(4, 16, dtype=torch.float64)
    assert [seen(gpu, lambda: gt.linear(x, weight, bias))[1] for _ in range(2)] == [0, 1]
    x.untyped_storage().resize_(0)
    assert linear_cache.repeated(x, weight, bias, None) is None


def test_a_tensor_times_its_own_transpose_is_planned(gpu):
    x = torch.randn(8, 8, dtype=torch.float64)
    for _ in range(3):
        # Nothing is cached for one tensor twice.
        gt.linear(x, x)
    assert not linear_cache._forwards
    for _ in range(3):
        gt.linear(x, x.clone())
    for weight in (x, x.view(8, 8)):
        got, queued = seen(gpu, lambda weight=weight: gt.linear(x, weight))
        assert queued == 0
        torch.testing.assert_close(got, x @ x.T)
    assert [len(known) for known in linear_cache._forwards.values()] == [1]


def test_cleared_choices_are_made_anew(gpu, monkeypatch):
    given = operands(4, 16, grad=False)
    for _ in range(3):
        gt.linear(*given)
    clear_choices()
    assert seen(gpu, lambda: gt.linear(*given))[1] == 0
    assert seen(gpu, lambda: gt.linear(*given))[1] == 1
    clear_choices()

    def cleared_meanwhile(*arrays, **options):
        clear_choices()
        return gpu.cached_gemm(*arrays, **options)

    monkeypatch.setattr(linear_cache, "cached_gemm", cleared_meanwhile)
    for _ in range(3):
        assert seen(gpu, lambda: gt.linear(*given))[1] == 0


def test_what_is_never_cached_is_not_looked_at_for_ever(gpu, monkeypatch):
    looked = []
    monkeypatch.setattr(linear_cache, "cached_gemm", lambda *_, **__: looked.append(1))
    given = operands(4, 16, grad=False)
    for _ in range(3 * linear_cache.MOST_LOOKS):
        gt.linear(*given)
    assert len(looked) == linear_cache.MOST_LOOKS
    monkeypatch.setattr(linear_cache, "MOST_DESCRIPTIONS", 5)
    for rows in range(1, 20):
        gt.linear(torch.randn(rows, 16, dtype=torch.float64), *given[1:])
        assert len(linear_cache._looks) <= 5


def test_threads_share_what_is_cached(gpu):
    layers = [gt.Linear(16, 8, dtype=torch.float64) for _ in range(2)]
    failed = []

    def work(layer):
        try:
            for rows in (1, 2, 3) * 20:
                x = torch.randn(rows, 16, dtype=torch.float64, requires_grad=True)
                got, expected = layer(x), functional.linear(x, layer.weight, layer.bias)
                torch.testing.assert_close(got, expected)
                grads = [torch.autograd.grad(y.sin().sum(), (x, layer.weight)) for y in (got, expected)]
                torch.testing.assert_close(*grads)
        except AssertionError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(layers[number % 2],)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert gpu.queued


def test_layers_are_copied_and_stored_as_before(gpu):
    layer = gt.Linear(16, 8, dtype=torch.float64)
    x = torch.randn(4, 16, dtype=torch.float64)
    for _ in range(3):
        expected = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(x), expected)
    assert {*vars(layer)} == {*vars(gt.Linear(16, 8))}


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


def test_precisions_are_apart(gpu):
    x, weight = torch.randn(4, 16, requires_grad=True), torch.nn.Parameter(torch.randn(8, 16))
    grad = torch.randn(4, 8)

    def both(precision):
        torch.autograd.grad(gt.linear(x, weight, precision=precision), (x, weight), grad)

    for precision in (None, "tf32", "bf16x6"):
        assert [seen(gpu, lambda p=precision: both(p))[1] for _ in range(3)] == [0, 3, 3]


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


@pytest.mark.parametrize("shape", [(4, 16), (2, 3, 16)], ids=str)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("layouts", [None, "those of the program"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_into_memory_of_a_program_is_queued_without_a_plan(gpu, shape, grad, layouts, with_bias):
    _, weight, bias = operands(*shape, bias=with_bias, grad=grad)
    inputs = (weight.mT, bias) if with_bias else (weight.mT,)
    for call in range(4):
        x, out = (torch.full((*shape[:-1], last), torch.nan, dtype=torch.float64) for last in (16, 8))
        with torch.no_grad():
            x.normal_()
            _, queued = seen(gpu, lambda x=x, out=out: linear_cache.product_into(x, *inputs, out=out, layouts=layouts))
            torch.testing.assert_close(out, functional.linear(x, weight, bias))
        assert queued == (call > 0)


def test_first_calls_of_a_program_are_within_a_mode_and_looked_at_later(gpu):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    first, second, out = torch.randn(3, 8, 8, dtype=torch.float64)
    with Mode():
        # As many as there are layers.
        for _ in range(2 * linear_cache.MOST_LOOKS):
            assert seen(gpu, lambda: linear_cache.product_into(first, second, out=out, layouts="8 x 8"))[1] == 0
    calls = [seen(gpu, lambda: linear_cache.product_into(first, second, out=out, layouts="8 x 8"))[1] for _ in range(3)]
    assert calls == [0, 1, 1]


@pytest.mark.parametrize("layouts", [None, "8 x 8"])
@pytest.mark.parametrize(
    ("context", "queued"),
    [
        (lambda: torch.device("cpu"), [0, 1, 1]),
        (torch.profiler.profile, [0, 1, 1]),
        (torch.autograd.forward_ad.dual_level, [0, 0, 0]),
    ],
    ids=["a default device", "a profiler", "tangents"],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_only_modes_and_tangents_keep_a_program_from_the_cache(gpu, layouts, context, queued):
    first, second, out = torch.randn(3, 8, 8, dtype=torch.float64)
    into = linear_cache.product_into
    with context():
        assert [seen(gpu, lambda: into(first, second, out=out, layouts=layouts))[1] for _ in range(3)] == queued
    torch.testing.assert_close(out, first @ second)
    # Without a look in vain.
    assert len(linear_cache._looks) == any(queued)


@pytest.mark.parametrize("layouts", [None, "8 x 8"])
def test_the_guard_is_asked_only_where_no_layouts_are_stated(gpu, monkeypatch, layouts):
    checks, guards = [], linear_cache._guards

    def counted(*given):
        check = guards(*given)
        return lambda *others: checks.append(others) or check(*others)

    monkeypatch.setattr(linear_cache, "_guards", counted)
    first, second, out = torch.randn(3, 8, 8, dtype=torch.float64)
    into = linear_cache.product_into
    assert [seen(gpu, lambda: into(first, second, out=out, layouts=layouts))[1] for _ in range(4)] == [0, 1, 1, 1]
    assert len(checks) == (0 if layouts else 3)


def test_products_into_memory_of_a_program_are_found_by_their_type(gpu):
    for dtype in (torch.float64, torch.float32):
        first, second, out = torch.randn(3, 8, 8, dtype=torch.float64).to(dtype)
        for _ in range(2):
            linear_cache.product_into(first, second, out=out)
            torch.testing.assert_close(out, first @ second)
    assert [len(known) for known in linear_cache._intos.values()] == [1, 1]


@pytest.mark.parametrize("place", range(4))
def test_memory_of_a_program_that_was_freed_is_not_read(gpu, place):
    given = [torch.randn(8, 8, dtype=torch.float64) for _ in range(4)]
    given[2] = given[2][0].clone()

    def into():
        linear_cache.product_into(*given[:3], out=given[3], layouts="8 x 8 and 8")

    assert [seen(gpu, into)[1] for _ in range(2)] == [0, 1]
    given[place].untyped_storage().resize_(0)
    before = gpu.queued
    with pytest.raises((RuntimeError, ShapeError, ValueError)):
        into()
    assert gpu.queued == before


@pytest.mark.parametrize("needed", range(3))
def test_factors_of_a_program_may_ask_for_gradients(gpu, needed):
    """Also where gradients are enabled: the program has a backward of its own."""
    given = [torch.randn(8, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64), torch.randn(8).double()]
    given[needed].requires_grad_()
    for call in range(3):
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        into = seen(gpu, lambda out=out: linear_cache.product_into(*given, out=out, layouts="8 x 8 and 8"))
        assert into == (None, call > 0)
        assert not out.requires_grad
        torch.testing.assert_close(out, (given[0] @ given[1] + given[2]).detach())


def test_addresses_that_need_a_plan_have_one_in_a_known_layout_too(gpu):
    first, second = torch.randn(2, 8, 8, dtype=torch.float64)
    unaligned = torch.randn(65, dtype=torch.float64)[1:].view(8, 8)
    bias, third = torch.randn(8, dtype=torch.float64), unaligned[0]
    for *inputs, queued in (
        *((first, second, 0), (first, second, 1), (unaligned, second, 0), (first, first, 0)),
        *((first, second, bias, 0), (first, second, bias, 1), (first, second, third, 0)),
    ):
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        layouts = "8 x 8" if len(inputs) == 2 else "8 x 8 and 8"
        into = seen(gpu, lambda i=inputs, o=out, w=layouts: linear_cache.product_into(*i, out=o, layouts=w))
        assert into == (None, queued)
        torch.testing.assert_close(out, inputs[0] @ inputs[1] + (inputs[2] if len(inputs) > 2 else 0))
    clear_choices()
    assert not linear_cache._intos


@pytest.mark.parametrize("layouts", [None, "8 x 8"])
def test_a_syrk_plan_is_not_cached_for_other_factors_of_a_program(gpu, layouts):
    x, y = torch.randn(2, 8, 8, dtype=torch.float64)
    for b, queued in ((x, 0), (y, 0), (y, 1), (x, 0)):
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        into = seen(gpu, lambda b=b, out=out: linear_cache.product_into(x, b.mT, out=out, layouts=layouts))
        assert into == (None, queued)
        torch.testing.assert_close(out, x @ b.mT)


@pytest.mark.parametrize("grad", [True, False])
def test_a_syrk_plan_is_not_cached_for_other_factors_of_a_layer(gpu, grad):
    x, y = torch.randn(2, 8, 8, dtype=torch.float64)
    y.requires_grad_(grad)
    for weight, queued in ((x[:].requires_grad_(grad), 0), (y, 0), (y, 1), (x[:].requires_grad_(grad), 0)):
        got, count = seen(gpu, lambda weight=weight: gt.linear(x, weight))
        assert count == queued
        torch.testing.assert_close(got, x @ weight.mT)


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


def test_a_product_into_memory_in_another_layout_is_planned(gpu):
    first, second = torch.randn(2, 8, 8, dtype=torch.float64)
    layouts = (first, second), (first.mT, second), (first, second.mT), (first, first), (first, first.mT)
    for a, b in 2 * layouts:
        out = torch.full((8, 8), torch.nan, dtype=torch.float64)
        linear_cache.product_into(a, b, out=out)
        torch.testing.assert_close(out, a @ b)
    # Two factors at one address are one of a kind.
    assert gpu.queued == 3
