"""Linear layers called again with new activations: what is queued without a plan, and what is not."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import gemmule.torch as gt  # noqa: E402
from gemmule.dispatch.choices.choice_cache import clear_choices  # noqa: E402
from gemmule.torch import linear_cache, linear_calls  # noqa: E402
from support.fakes.linear_gpu import operands, seen  # noqa: E402

functional = torch.nn.functional


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
    monkeypatch.setattr(linear_calls, "_last", [0, 0, None])
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


def test_layers_of_one_input_overlap_in_a_graph_where_nothing_is_between_them(launched, monkeypatch):
    asked, follows = [], [True]

    def was_captured_last(queue, stream):
        asked.append((queue, stream))
        return follows[0]

    monkeypatch.setattr(linear_calls, "_is_capturing", lambda: True)
    monkeypatch.setattr(linear_calls, "was_captured_last", was_captured_last)
    weight = operands(4, 16, bias=False, grad=False)[1]
    x = torch.randn(4, 16, dtype=torch.float64)
    gt.linear(x, weight)
    launched.clear()
    for follows[0] in (True, True, False):
        torch.testing.assert_close(gt.linear(x, weight), functional.linear(x, weight))
    assert launched == ["serial", "overlapping", "serial"]
    # Only behind a layer of the same input it is asked.
    assert len(asked) == 2
    assert all(callable(queue) and stream == 7 for queue, stream in asked)


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


def test_precisions_are_apart(gpu):
    x, weight = torch.randn(4, 16, requires_grad=True), torch.nn.Parameter(torch.randn(8, 16))
    grad = torch.randn(4, 8)

    def both(precision):
        torch.autograd.grad(gt.linear(x, weight, precision=precision), (x, weight), grad)

    for precision in (None, "tf32", "bf16x6"):
        assert [seen(gpu, lambda p=precision: both(p))[1] for _ in range(3)] == [0, 3, 3]


@pytest.mark.parametrize("grad", [True, False])
def test_a_syrk_plan_is_not_cached_for_other_factors_of_a_layer(gpu, grad):
    x, y = torch.randn(2, 8, 8, dtype=torch.float64)
    y.requires_grad_(grad)
    for weight, queued in ((x[:].requires_grad_(grad), 0), (y, 0), (y, 1), (x[:].requires_grad_(grad), 0)):
        got, count = seen(gpu, lambda weight=weight: gt.linear(x, weight))
        assert count == queued
        torch.testing.assert_close(got, x @ weight.mT)
