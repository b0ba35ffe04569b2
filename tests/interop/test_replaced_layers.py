"""Layers that `replace_linear` has changed, as docs/frameworks.md has them: back again, stored, and distributed."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

import torch.distributed as dist  # noqa: E402

import gemmule as gm  # noqa: E402
import gemmule.torch as gt  # noqa: E402

NAMES = ("0", "2")


def model_of(seed: int):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad for one in model.parameters()]


@pytest.fixture
def group(tmp_path):
    """A group of this process alone."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no distributed package with gloo")
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_they_are_restored_by_their_class():
    plain, model, x = model_of(1), model_of(1), torch.randn(3, 6)
    gt.replace_linear(model, precision="tf32")
    for layer in model.modules():
        if type(layer) is gt.Linear:
            layer.__class__ = torch.nn.Linear
    assert all(type(model[int(name)]) is torch.nn.Linear for name in NAMES)
    assert repr(model) == repr(plain)
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)


def test_state_dicts_go_both_ways():
    plain, model, x = model_of(1), model_of(2), torch.randn(3, 6)
    gt.replace_linear(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(x), model(x))
    other = model_of(3)
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(model(x), other(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_their_class(copied):
    model, x = model_of(1), torch.randn(3, 6)
    gt.replace_linear(model)
    other = copied(model)
    assert type(other[0]) is gt.Linear
    torch.testing.assert_close(other(x), model(x))


class Plain(torch.nn.Module):
    """Functions of gemmule.torch, on the way to no layer."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return gt.addmm(x, gt.matmul(x, self.weight), self.weight) + gt.linear(x, self.weight)


def traced():
    replaced, quantized = (
        model_of(1),
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU()).requires_grad_(False),
    )
    gt.replace_linear(replaced)
    gt.quantize_linear(quantized)
    return {"replaced": (replaced, 6), "quantized": (quantized, 16), "functions": (Plain(), 6)}


@pytest.mark.parametrize("name", ["replaced", "quantized", "functions"])
def test_symbolic_traces_have_nodes_of_them(name):
    model, features = traced()[name]
    graph = torch.fx.symbolic_trace(model)
    assert any(node.op == "call_function" and "gemmule" in node.target.__module__ for node in graph.graph.nodes)
    for count in (3, 5):
        x = torch.randn(count, features)
        torch.testing.assert_close(graph(x), model(x), rtol=0, atol=0)


def test_symbolic_traces_of_functions_by_another_name():
    matmul = gt.matmul
    with pytest.raises(gm.ArgumentError, match=r"^input is of type Proxy, .* call it as gemmule\.torch's"):
        torch.fx.symbolic_trace(lambda x: matmul(x, x))


@pytest.mark.parametrize("before", [True, False])
def test_ddp_takes_them_before_and_after(group, before):
    plain, model, x = model_of(1), model_of(1), torch.randn(3, 6)
    if before:
        assert gt.replace_linear(model) == NAMES
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    if not before:
        assert gt.replace_linear(wrapped) == tuple(f"module.{name}" for name in NAMES)
    assert type(model[0]) is gt.Linear
    torch.testing.assert_close(gradients(wrapped, x), gradients(plain, x))


def test_sharded_layers_are_replaced_before(group):
    fsdp = pytest.importorskip("torch.distributed.fsdp", reason="this PyTorch has no FSDP2")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    plain, model, late, x = model_of(1), model_of(1), model_of(1), torch.randn(3, 6)
    assert gt.replace_linear(model) == NAMES
    for one in (model, late):
        for layer in (one[0], one[2], one):
            fsdp.fully_shard(layer, mesh=mesh)
    assert isinstance(model[0], gt.Linear)
    assert gt.replace_linear(late) == ()  # their class is FSDP's
    for one in (model, late):
        for _ in range(2):
            torch.testing.assert_close(gradients(one, x), gradients(plain, x))
