"""PyTorch's own check of tensors, on which repeated calls rely, and what reads tensors where it is not to be had."""

from __future__ import annotations

import types

import pytest

from gemmule.runtime.arrays.torch_guards import tensor_guards

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")


@pytest.fixture
def check():
    made = tensor_guards(torch)
    assert made is not None, "this version of PyTorch has no guards as they are known, or they fail the test"
    return made(torch.randn(4, 6), torch.randn(6, 5))


def test_tensors_of_one_kind(check):
    assert check(torch.zeros(4, 6), torch.ones(6, 5))
    assert check(torch.zeros(30)[6:].view(4, 6), torch.ones(6, 5))


def with_other_data(x):
    x.data = torch.zeros(4, 6, dtype=torch.float64)
    return x


@pytest.mark.parametrize(
    "change",
    [
        lambda x: torch.zeros(6, 4),
        lambda x: torch.zeros(6, 4).T,
        lambda x: x.double(),
        lambda x: torch.nn.Parameter(x, requires_grad=False),
        lambda x: x.requires_grad_(),
        torch._neg_view,
        lambda x: x.to("meta"),
        lambda x: x.to_sparse(),
        lambda x: x.resize_(2, 3),
        lambda x: x.t_(),
        with_other_data,
        lambda x: x.set_(torch.zeros(100), 0, (4, 6), (7, 1)),
        lambda x: 3,
        lambda x: None,
    ],
)
def test_tensors_of_another_kind(check, change):
    x = torch.zeros(4, 6)
    assert check(x, torch.ones(6, 5))
    assert not check(change(x), torch.ones(6, 5))


def test_under_a_mode_of_fake_tensors(check):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, y = torch.zeros(4, 6), torch.ones(6, 5)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not check(x, y)
    assert check(x, y)


def test_under_a_transformation(check):
    seen = []

    def look(x):
        seen.append(check(x, torch.ones(6, 5)))
        return x.sum()

    torch.func.grad(look)(torch.zeros(4, 6))
    torch.func.vmap(look)(torch.zeros(3, 4, 6))
    assert seen == [False, False]


def test_a_pytorch_without_them():
    assert tensor_guards(types.SimpleNamespace(_C=types.SimpleNamespace())) is None

    class LetsEverythingThrough:
        def __init__(self, *tensors, **options):
            pass

        def check(self, *tensors):
            return True

    class TakesOtherArguments:
        def __init__(self, tensors):
            pass

    for kind in (LetsEverythingThrough, TakesOtherArguments):
        guards = types.SimpleNamespace(guards=types.SimpleNamespace(TensorGuards=kind))
        other = types.SimpleNamespace(**{name: getattr(torch, name) for name in ("empty_strided", "_neg_view", "nn")})
        other.float32, other.int32, other._C = torch.float32, torch.int32, types.SimpleNamespace(_dynamo=guards)
        assert tensor_guards(other) is None


def test_while_there_are_tangents(check):
    x, y = torch.zeros(4, 6), torch.ones(6, 5)
    with torch.autograd.forward_ad.dual_level():
        assert not check(x, y)
    assert check(x, y)


def a_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    return Mode()


def fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "context",
    [a_mode, fake_tensors, torch.inference_mode, torch.autograd.forward_ad.dual_level, lambda: torch.device("meta")],
    ids=["a mode", "fake tensors", "inference mode", "tangents", "a default device"],
)
def test_a_first_product_within_a_mode(context):
    """Whether there are guards is asked once, of whatever comes first, such as the trace of a program."""
    with context():
        made = tensor_guards(torch)
    assert made is not None
    assert made(torch.zeros(2, 3))(torch.ones(2, 3))
