"""gemmule.torch on a GPU in compiled functions and captured graphs, and on the stream of PyTorch."""

from __future__ import annotations

import copy

import pytest

import gemmule as gm
from support.gpu.normal_tensors import assert_close, normal


def test_the_stream_of_pytorch(torch, gt):
    x, weight, bias = (t.requires_grad_() for t in normal(torch, "bfloat16", (64, 96), (80, 96), (80,)))
    gt.linear(x, weight, bias).sum().backward()  # compiled and loaded
    expected, grads = gt.linear(x, weight, bias).detach(), [t.grad.clone() for t in (x, weight, bias)]
    late = torch.zeros_like(x, requires_grad=True)
    weight.grad = bias.grad = None
    torch.cuda.synchronize()
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        with torch.no_grad():
            late.copy_(x)
        got = gt.linear(late, weight, bias)
        got.sum().backward()
        done.record()
    assert not done.query(), "the call waited for the GPU"
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    assert torch.equal(got, expected)
    for one, other in zip((late, weight, bias), grads, strict=True):
        assert torch.equal(one.grad, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_captured_graph_replays_with_new_data(torch, gt, dtype):
    x, weight, bias = normal(torch, dtype, (2, 48, 96), (80, 96), (80,))
    layer = gt.Linear(96, 80, device="cuda", dtype=x.dtype)
    other = gt.Linear(80, 96, bias=False, device="cuda", dtype=x.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    parameters = (layer.weight, layer.bias, other.weight)

    def step():
        got = other(layer(x))
        return got.detach(), *torch.autograd.grad(got.square().sum(), parameters)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # compiled and loaded
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    (fresh,) = normal(torch, dtype, x.shape)
    x.copy_(fresh)
    for result in results:
        result.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    replayed = [result.clone() for result in results]
    for one, expected in zip(replayed, step(), strict=True):
        assert torch.equal(one, expected)
    hidden = torch.nn.functional.linear(fresh.double(), weight.double(), bias.double()).to(x.dtype)
    assert_close(torch, replayed[0], hidden.double() @ other.weight.detach().double().mT, dtype, 80)


# What PyTorch imports for its compiler warns of parts of PyTorch, and its graphs begin with an empty one.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "cudagraphs", "inductor"])
def test_compiled_without_a_break(torch, gt, backend):
    model = torch.nn.Sequential(torch.nn.Linear(96, 160), torch.nn.GELU(), torch.nn.Linear(160, 40)).cuda()
    expected_model = torch.nn.Sequential(*(torch.nn.Linear(96, 160), torch.nn.GELU(), torch.nn.Linear(160, 40))).cuda()
    expected_model.load_state_dict(model.state_dict())
    assert gt.replace_linear(model) == ("0", "2")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for _ in range(4):
        (x,) = normal(torch, "float32", (6, 7, 96))
        got, expected = compiled(x), expected_model.double()(x.double())
        assert_close(torch, got.detach(), expected.detach(), "float32", 160)
        model.zero_grad()
        expected_model.zero_grad()
        got.square().mean().backward()
        expected.square().mean().backward()
        for one, other in zip(model.parameters(), expected_model.parameters(), strict=True):
            assert_close(torch, one.grad, other.grad, "float32", 1)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("rows", [(1, 1), (8, 1), (33,)], ids=str)
def test_programs_queue_products_whose_layouts_they_state(torch, gt, rows):
    from gemmule.torch import linear_cache

    # More layers of a kind than times that one is looked at, with a bias and without.
    kinds = [bool(number % 3) for number in range(2 * linear_cache.MOST_LOOKS)]
    layers = [torch.nn.Linear(256, 256, bias, "cuda", torch.bfloat16) for bias in kinds]
    model = torch.nn.Sequential(*layers)
    expected_model = copy.deepcopy(model)
    gt.replace_linear(model)
    linear_cache.forget()
    torch._dynamo.reset()
    compiled = torch.compile(model)
    with torch.no_grad():
        for call in range(5):
            (x,) = normal(torch, "bfloat16", (*rows, 256))
            if call == 3:
                model[1].weight.mul_(-2)
                expected_model[1].weight.mul_(-2)
            got = compiled(x)
            torch.testing.assert_close(got, expected_model(x), rtol=0.05, atol=0.01)
    known = [one for each in linear_cache._intos.values() for one in each]
    assert len(known) == 2
    assert all(isinstance(layouts, str) for layouts in linear_cache._intos)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_programs_on_the_current_stream_with_memory_that_changes_hands(torch, gt, mode):
    """Each call has other activations, which lie where freed ones were, and one layer's weight moves or is written."""
    from gemmule.torch import linear_cache

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, False, "cuda", torch.bfloat16) for _ in range(3)))
    expected_model = copy.deepcopy(model)
    gt.replace_linear(model)
    linear_cache.forget()
    torch._dynamo.reset()
    compiled, streams = torch.compile(model, mode=mode), [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        for call in range(8):
            stream = torch.cuda.current_stream() if mode != "default" or call < 3 else streams[call % 2]
            if call == 4:
                for one in (model, expected_model):
                    one[1].weight.mul_(-1)
            if call == 5 and mode == "default":
                # The memory of the former weight is free, and given to others.
                model[2].weight.data = model[2].weight.data.clone()
                torch.full((256, 256), torch.nan, dtype=torch.bfloat16, device="cuda")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                (x,) = normal(torch, "bfloat16", (64, 256))
                # What is late on this stream is read by a product that went to another one.
                torch.cuda._sleep(2_000_000)
                x.mul_(call + 1)
                # A view of a larger tensor is aligned to less, and planned.
                place = torch.empty(64 * 256 + 8, dtype=torch.bfloat16, device="cuda")[8:].view(64, 256).copy_(x)
                for given in (x, place) if mode == "default" else (x,):
                    got, expected = compiled(given).clone(), expected_model(x)
                    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.02 * expected.abs().max().item())
            torch.cuda.current_stream().wait_stream(stream)
    assert sum(map(len, linear_cache._intos.values())) >= 1


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
def test_within_modes_and_transforms(torch, gt):
    """What was decided for tensors is not taken for fake ones, or where the result would be one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = normal(torch, "float32", (64, 64), (64, 64))
    for _ in range(4):
        gm.matmul(a, b)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(gm.ArgumentError, match=r"gemmule\.torch"):
        gm.matmul(a, b)
    with pytest.raises(gm.ArgumentError, match=r"gemmule\.torch"):
        torch.func.vmap(lambda x: gm.matmul(x, b))(torch.stack([a, a]))
    with pytest.raises(gm.ArgumentError, match=r"gemmule\.torch"):
        torch.jit.trace(lambda x: gm.matmul(x, b), (a,))
    torch.testing.assert_close(gm.matmul(a, b), a @ b, rtol=1e-4, atol=1e-3)
